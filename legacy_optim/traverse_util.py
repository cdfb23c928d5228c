"""Traversals select parts of immutable containers, and make changed copies.

    t_identity["encoder"].each().filter(is_kernel).update(jnp.zeros_like, params)

Dicts, FrozenDicts, lists, tuples, NamedTuples and dataclasses can be traversed. These warn of
nothing; Flax's own traversals say at every construction that they will go.
"""

import abc
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax.core import FrozenDict, unfreeze
from flax.traverse_util import empty_node as empty_node
from flax.traverse_util import flatten_dict as flatten_dict
from flax.traverse_util import unflatten_dict as unflatten_dict

from legacy_optim.typing import Params, PyTree


class Traversal(abc.ABC):
    """Selects parts of a container; longer selections are written as chains: `t["a"].b.each()`."""

    @abc.abstractmethod
    def update(self, fn: Callable[[PyTree], PyTree], inputs: PyTree) -> PyTree:
        """A copy of `inputs` with every selected part replaced by `fn(part)`."""

    @abc.abstractmethod
    def iterate(self, inputs: PyTree) -> Iterator[PyTree]:
        """The selected parts, in the order in which `update` visits them."""

    def set(self, values: list[PyTree], inputs: PyTree) -> PyTree:
        """A copy of `inputs` with the selected parts replaced by `values`, which is emptied.

        Raises:
          ValueError: there are more or fewer values than selected parts.
        """

        def take(_: PyTree) -> PyTree:
            if not values:
                raise ValueError("Not enough values provided: the traversal selects more parts")
            return values.pop(0)

        result = self.update(take, inputs)
        if values:
            raise ValueError(f"Too many values provided: {len(values)} were left over")
        return result

    def compose(self, other: "Traversal") -> "Traversal":
        """Selects with `other` within each selected part."""
        return TraverseCompose(self, other)

    def merge(self, *traversals: "Traversal") -> "Traversal":
        """Selects with each of several traversals within each selected part, one after another."""
        return self.compose(TraverseMerge(*traversals))

    def each(self) -> "Traversal":
        """Selects every item of the selected containers."""
        return self.compose(TraverseEach())

    def tree(self) -> "Traversal":
        """Selects every leaf of the selected pytrees."""
        return self.compose(TraverseTree())

    def filter(self, fn: Callable[[PyTree], bool]) -> "Traversal":
        """Keeps the selected parts for which `fn` holds."""
        return self.compose(TraverseFilter(fn))

    def __getattr__(self, attr: str) -> "Traversal":
        if attr.startswith("__"):  # copying and pickling look for methods of that form
            raise AttributeError(attr)
        return self.compose(TraverseAttr(attr))

    def __getitem__(self, key: Any) -> "Traversal":
        return self.compose(TraverseItem(key))


class TraverseId(Traversal):
    """Selects the whole input."""

    def update(self, fn: Callable[[PyTree], PyTree], inputs: PyTree) -> PyTree:
        return fn(inputs)

    def iterate(self, inputs: PyTree) -> Iterator[PyTree]:
        yield inputs


t_identity = TraverseId()


class TraverseMerge(Traversal):
    """Selects the leaves of several traversals, one traversal after another."""

    def __init__(self, *traversals: Traversal):
        self._traversals = traversals

    def update(self, fn: Callable[[PyTree], PyTree], inputs: PyTree) -> PyTree:
        for traversal in self._traversals:
            inputs = traversal.update(fn, inputs)
        return inputs

    def iterate(self, inputs: PyTree) -> Iterator[PyTree]:
        for traversal in self._traversals:
            yield from traversal.iterate(inputs)


class TraverseCompose(Traversal):
    """Selects with the second traversal within what the first one selects."""

    def __init__(self, x: Traversal, y: Traversal):
        self._outer, self._inner = x, y

    def update(self, fn: Callable[[PyTree], PyTree], inputs: PyTree) -> PyTree:
        return self._outer.update(lambda part: self._inner.update(fn, part), inputs)

    def iterate(self, inputs: PyTree) -> Iterator[PyTree]:
        for part in self._outer.iterate(inputs):
            yield from self._inner.iterate(part)


class TraverseFilter(Traversal):
    """Selects the input if a predicate holds for it."""

    def __init__(self, fn: Callable[[PyTree], bool]):
        self._predicate = fn

    def update(self, fn: Callable[[PyTree], PyTree], inputs: PyTree) -> PyTree:
        return fn(inputs) if self._predicate(inputs) else inputs

    def iterate(self, inputs: PyTree) -> Iterator[PyTree]:
        if self._predicate(inputs):
            yield inputs


class TraverseAttr(Traversal):
    """Selects an attribute of a NamedTuple, a dataclass or any other object."""

    def __init__(self, attr: str):
        self._name = attr

    def update(self, fn: Callable[[PyTree], PyTree], inputs: PyTree) -> PyTree:
        changed = {self._name: fn(getattr(inputs, self._name))}
        if _is_named_tuple(inputs):
            return inputs._replace(**changed)
        if dataclasses.is_dataclass(inputs) and not isinstance(inputs, type):
            return dataclasses.replace(inputs, **changed)
        result = copy.copy(inputs)
        setattr(result, self._name, changed[self._name])
        return result

    def iterate(self, inputs: PyTree) -> Iterator[PyTree]:
        yield getattr(inputs, self._name)


class TraverseItem(Traversal):
    """Selects an item by key or index, or several of a list or tuple by a slice."""

    def __init__(self, key: Any):
        self._key = key

    def update(self, fn: Callable[[PyTree], PyTree], inputs: PyTree) -> PyTree:
        if isinstance(inputs, tuple | list):
            chosen = set(np.atleast_1d(np.arange(len(inputs))[self._key]).tolist())
            items = [fn(item) if i in chosen else item for i, item in enumerate(inputs)]
            return _rebuilt(inputs, items)
        changed = fn(inputs[self._key])
        if isinstance(inputs, FrozenDict):
            return inputs.copy({self._key: changed})
        result = copy.copy(inputs)
        result[self._key] = changed
        return result

    def iterate(self, inputs: PyTree) -> Iterator[PyTree]:
        if isinstance(self._key, slice):
            yield from inputs[self._key]
        else:
            yield inputs[self._key]


class TraverseEach(Traversal):
    """Selects every item of a dict, FrozenDict, list, tuple or NamedTuple."""

    def update(self, fn: Callable[[PyTree], PyTree], inputs: PyTree) -> PyTree:
        if isinstance(inputs, Mapping):
            items = {key: fn(value) for key, value in inputs.items()}
            if isinstance(inputs, FrozenDict):
                return FrozenDict(items)
            result: PyTree = copy.copy(inputs)  # an OrderedDict is another pytree than a dict
            result.update(items)
            return result
        if not isinstance(inputs, list | tuple):
            raise ValueError(
                "Only the entries of a dict, list or tuple can be traversed, not those of a "
                f"{type(inputs).__name__}"
            )
        return _rebuilt(inputs, [fn(item) for item in inputs])

    def iterate(self, inputs: PyTree) -> Iterator[PyTree]:
        yield from inputs.values() if isinstance(inputs, Mapping) else inputs


class TraverseTree(Traversal):
    """Selects every leaf of a pytree."""

    def update(self, fn: Callable[[PyTree], PyTree], inputs: PyTree) -> PyTree:
        return jax.tree.map(fn, inputs)

    def iterate(self, inputs: PyTree) -> Iterator[PyTree]:
        yield from jax.tree.leaves(inputs)


class ModelParamTraversal(Traversal):
    """Selects parameters of a nested dict by name.

    Args:
      filter_fn: `filter_fn(path, value)`, with paths like `/encoder/dense/kernel`, says whether a
        parameter is selected.
    """

    def __init__(self, filter_fn: Callable[[str, PyTree], bool]):
        self._filter_fn = filter_fn

    def iterate(self, inputs: PyTree) -> Iterator[PyTree]:
        for key, value in sorted(flatten_dict(_as_dict(inputs)).items()):
            if self._filter_fn("/" + "/".join(key), value):
                yield value

    def update(self, fn: Callable[[PyTree], PyTree], inputs: PyTree) -> PyTree:
        flat = flatten_dict(_as_dict(inputs), keep_empty_nodes=True)
        for key, value in sorted(flat.items(), key=lambda item: item[0]):
            if value is not empty_node and self._filter_fn("/" + "/".join(key), value):
                flat[key] = fn(value)
        result = unflatten_dict(flat)
        return FrozenDict(result) if isinstance(inputs, FrozenDict) else result


class _Leaf:
    """Stands for a leaf while a traversal selects: its number, shape and dtype, no value."""

    def __init__(self, index: int, value: PyTree):
        self.index = index
        self.shape = np.shape(value)
        self.ndim = len(self.shape)
        self.size = int(np.prod(self.shape))
        self.dtype = jax.numpy.result_type(value)


def leaf_indices(traversal: Traversal, tree: PyTree) -> list[int]:
    """Returns the indices of the leaves that a traversal selects."""
    leaves, treedef = jax.tree.flatten(tree)
    tagged = treedef.unflatten([_Leaf(index, leaf) for index, leaf in enumerate(leaves)])
    indices = []
    for part in traversal.iterate(tagged):
        if part is None:  # no leaf to JAX: a layer without a bias
            continue
        if not isinstance(part, _Leaf):
            raise ValueError(
                f"the traversal selects a {type(part).__name__}, not a single parameter; end it "
                "with .tree() to select all parameters below"
            )
        indices.append(part.index)
    return indices


def _as_dict(inputs: PyTree) -> dict[str, PyTree]:
    if not isinstance(inputs, dict | FrozenDict):
        raise ValueError(
            f"ModelParamTraversal goes over a nested dict of parameters, not over a "
            f"{type(inputs).__name__}"
        )
    return unfreeze(inputs)


def _is_named_tuple(value: PyTree) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _rebuilt(inputs: PyTree, items: list[PyTree]) -> PyTree:
    """The items in a container of the type of `inputs`."""
    return type(inputs)(*items) if _is_named_tuple(inputs) else type(inputs)(items)


def check_disjoint(params: Params, groups: Sequence[Sequence[int]]) -> None:
    """Raises a ValueError if a leaf is in several groups."""
    paths, treedef = jax.tree_util.tree_flatten_with_path(params)
    holders: list[list[int]] = [[] for _ in paths]
    for number, group in enumerate(groups):
        for index in group:
            holders[index].append(number)
    clashes = [
        f"params{jax.tree_util.keystr(path)} by {numbers}"
        for (path, _), numbers in zip(paths, holders, strict=True)
        if len(numbers) > 1
    ]
    if clashes:
        raise ValueError(
            f"Multiple optimizers match the same leaves: {', '.join(clashes)}. Narrow one of the "
            f"traversals. By leaf, the optimizers that match it: {treedef.unflatten(holders)}"
        )
