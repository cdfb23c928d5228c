from flax.traverse_util import ModelParamTraversal as _Traversal


def ending_with(*names):
    return _Traversal(lambda path, _: path.split('/')[-1] in names)


def all_but(*names):
    return _Traversal(lambda path, _: path.split('/')[-1] not in names)
