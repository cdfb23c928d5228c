"""`save_checkpoint("run", ...)` becomes `save_checkpoint(os.path.abspath("run"), ...)`.

Before:

    checkpoints.save_checkpoint("run", optimizer, step)
    checkpoints.restore_checkpoint("run", optimizer)

After:

    checkpoints.save_checkpoint(os.path.abspath("run"), optimizer, step)
    checkpoints.restore_checkpoint(os.path.abspath("run"), optimizer)

Flax hands the folder to Orbax now, which takes absolute paths alone. A folder that is not written
out is left as it is, and the summary says what it must be.
"""

import libcst as cst

from migration_guide.codemod.context import Context

_CALLS = ("save_checkpoint", "save_checkpoint_multiprocess", "restore_checkpoint")
_HOME = "flax.training.checkpoints."
_SAID = (
    "Flax hands this folder to Orbax now, which takes absolute paths alone: os.path.abspath(...) "
    "makes one"
)


def rewrite_call(
    context: Context, original: cst.Call, updated: cst.Call
) -> cst.BaseExpression | None:
    """See the module."""
    name = context.name(original.func)
    if not name.startswith(_HOME) or name.removeprefix(_HOME) not in _CALLS:
        return None
    for index, arg in enumerate(original.args):
        is_folder = index == 0 if arg.keyword is None else arg.keyword.value == "ckpt_dir"
        if not is_folder or arg.star:
            continue
        if isinstance(arg.value, cst.SimpleString):
            path = arg.value.evaluated_value
            if not isinstance(path, str) or path.startswith("/") or "://" in path:
                return None
            absolute = cst.Call(
                context.dotted("os.path.abspath"), [cst.Arg(updated.args[index].value)]
            )
            args = list(updated.args)
            args[index] = args[index].with_changes(value=absolute)
            return updated.with_changes(args=args)
        if not _makes_absolute(context, arg.value):
            context.note(original, _SAID)
    return None


def _makes_absolute(context: Context, node: cst.BaseExpression) -> bool:
    called = context.name(node.func) if isinstance(node, cst.Call) else ""
    return called in ("os.path.abspath", "os.path.realpath", "tempfile.mkdtemp")
