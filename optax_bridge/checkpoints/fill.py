"""The state of any transformation from a legacy optimizer's parameter states.

The transformation's own state is the template, exact or of public Optax, in groups and chains:
its NamedTuples are walked, and each field that the correspondence knows gets the legacy field that
it stands for. What no legacy optimizer has, an accumulator's gradients say, is reported as missing.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import legacy_optim
from legacy_optim.older_layout import OLDER_WEIGHT_NORM, has_older_weight_norm
from optax_bridge.checkpoints.fitting import Fit, Names, kind, leaves
from optax_bridge.correspondence import ENTRIES
from optax_bridge.correspondence.recipe import build
from optax_bridge.metadata.axis_metadata import key_names
from optax_bridge.metadata.trees import Leaf, OptState, PyTree

_COUNTS = ("count", "gradient_step")  # of steps taken; MultiSteps counts them by the other name
_SETTINGS = ("hyperparams",)  # arguments of the transformation, which the program gives
_OTHER_OPTIMIZER = (
    "The state is that of another optimizer than the one restored into, or of one with other "
    "settings: make the transformation that corresponds to the optimizer that wrote it."
)
_OTHER_DTYPE = (
    "Its bits would be lost: restore into the exact transformation (optax_bridge's own, "
    "from_legacy(definition), `--recipe exact` of migrate and convert), which keeps that dtype."
)


@dataclass(frozen=True)
class Row:
    """What a legacy optimizer keeps for one parameter.

    Attributes:
      index: which parameter it is.
      path: of the parameter's state in the checkpoint.
      fields: nested dicts of arrays; None where a MultiOptimizer left the parameter alone.
      below: the level within the parameter's state that is looked at, for WeightNorm's parts.
    """

    index: int
    path: Names
    fields: Any
    below: Names = ()


@dataclass
class Filler:
    """Fills a state from rows.

    Attributes:
      fit: keeps what does not fit.
      step: steps taken; a number for each device where the state is replicated.
      reconciled: gives an array of the checkpoint in the shape of the template's leaf.
      dtypes: the dtype of each leaf of the state, in order.
      at: where the optimizer stands in the checkpoint.
    """

    fit: Fit
    step: Any
    reconciled: Callable[[Any, Any, Names], Any]
    dtypes: Iterator[Any]
    at: Names
    taken: set[tuple[int, Names]] = field(default_factory=set)

    def filled(self, state: OptState, rows: Mapping[Names, Row], path: Names) -> PyTree:
        """The state with its leaves from the rows.

        Args:
          state: the template, without boxes.
          rows: by the parameters' paths within the template's trees.
          path: of the state among the fields of the `TrainState`.
        """
        new = self._node(state, rows, path, last=True)
        for row in rows.values():
            if row.fields is None:
                continue
            for names, leaf in leaves(row.fields):
                is_left = leaf is not None and (row.index, names) not in self.taken
                if is_left and not _is_placeholder(names, leaf, row.fields):
                    self.fit.surplus.append((*row.path, *names))
                    older = has_older_weight_norm(row.fields)
                    self.fit.remedy = OLDER_WEIGHT_NORM if older else _OTHER_OPTIMIZER
        return new

    def _node(self, node: PyTree, rows: Mapping[Names, Row], path: Names, last: bool) -> PyTree:
        if isinstance(node, legacy_optim.OptimizerState):
            own: Any = node
            step = self._count(own.step)
            states = self._own(own.param_states, rows, (*path, "param_states"))
            return own.replace(step=step, param_states=states)
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            return self._named_tuple(node, rows, path, last)
        if isinstance(node, tuple | list):
            is_negated = _types(node) == _types_of_negated()
            new = []
            for index, item in enumerate(node):
                is_last = index == len(node) - 1
                self._negated = is_negated and is_last
                new.append(self._node(item, rows, (*path, str(index)), last and is_last))
                self._negated = False
            return type(node)(new)
        if isinstance(node, dict):
            # In JAX's order of leaves, which the dtypes are in.
            return {k: self._node(node[k], rows, (*path, str(k)), last) for k in sorted(node)}
        return jax.tree_util.tree_map_with_path(
            lambda at, leaf: self._unknown(leaf, (*path, *key_names(at))), node
        )

    _negated = False

    def _named_tuple(
        self, node: PyTree, rows: Mapping[Names, Row], path: Names, last: bool
    ) -> PyTree:
        name, new = type(node).__name__, {}
        # In JAX's order of leaves, which is not the fields' in the state of `one_loop`.
        parts = jax.tree_util.tree_leaves_with_path(node, is_leaf=lambda part: part is not node)
        for own in (key_names(key)[0] for key, _ in parts):
            value, at = getattr(node, own), (*path, own)
            if own in _COUNTS:
                new[own] = self._count(value)
            elif own in _SETTINGS:
                new[own] = jax.tree.map(self._kept, value)
            elif name == "WeightNormState" and own == "inner":
                new[own] = self._node(value, _parts(rows), at, last)
            elif f"{name}.{own}" in _fields():
                new[own] = self._column(value, f"{name}.{own}", rows, at, last)
            else:
                new[own] = self._node(value, rows, at, last)
        return node._replace(**new)

    def _column(
        self, tree: PyTree, key: str, rows: Mapping[Names, Row], path: Names, last: bool
    ) -> PyTree:
        """A field with a tree like the parameters."""

        def leaf(at: Any, old: Leaf) -> Leaf:
            names = key_names(at)
            row = rows.get(names)
            fields: Any = None if row is None else row.fields
            for name in row.below if row else ():
                fields = fields.get(name) if isinstance(fields, Mapping) else None
            known = {
                legacy: signs for legacy, signs in _fields()[key].items() if _has(fields, legacy)
            }
            if row is None or len(known) != 1:
                return self._unknown(old, (*path, *names))
            ((legacy, signs),) = known.items()
            new = self._value(fields[legacy], old, row, (*row.below, legacy))
            if len(signs) > 1:
                if last and not self._negated:
                    self.fit.wrong.append(
                        (path, "a trace before the step is scaled", "one after it, at the end")
                    )
                return -np.asarray(new) if self._negated else new
            return -np.asarray(new) if -1 in signs else new

        return jax.tree_util.tree_map_with_path(leaf, tree)

    def _own(self, tree: PyTree, rows: Mapping[Names, Row], path: Names) -> PyTree:
        """The states that a definition of the user's own makes."""

        def leaf(at: Any, old: Leaf) -> Leaf:
            names = key_names(at)
            for length in range(len(names), -1, -1):
                row = rows.get(names[:length])
                if row is None:
                    continue
                found: Any = row.fields
                for name in (*row.below, *names[length:]):
                    found = found.get(name) if isinstance(found, Mapping) else None
                if found is not None:
                    return self._value(found, old, row, (*row.below, *names[length:]))
            return self._unknown(old, (*path, *names))

        return jax.tree_util.tree_map_with_path(leaf, tree)

    def _value(self, found: Any, old: Leaf, row: Row, names: Names) -> Leaf:
        dtype, path = next(self.dtypes), (*row.path, *names)
        if (row.index, names) in self.taken:
            self.fit.wrong.append((path, "one place in the new state", "several"))
        self.taken.add((row.index, names))
        new = self.reconciled(found, old, path)
        if new is None:
            self.fit.wrong.append((path, kind(old), kind(found)))
            self.fit.remedy = _OTHER_OPTIMIZER
            return old
        if np.dtype(new.dtype) != dtype:
            self.fit.wrong.append((path, f"{dtype}, which the new state keeps", str(new.dtype)))
            self.fit.remedy = _OTHER_DTYPE
        return new

    def _count(self, old: Leaf) -> Leaf:
        next(self.dtypes)
        dtype = old.dtype if hasattr(old, "dtype") else np.int32
        return np.broadcast_to(np.asarray(self.step, dtype), np.shape(old))

    def _kept(self, old: Leaf) -> Leaf:
        next(self.dtypes)
        return old

    def _unknown(self, old: Leaf, path: Names) -> Leaf:
        next(self.dtypes)
        self.fit.missing.append(path)
        return old


def _has(fields: Any, name: str) -> bool:
    return isinstance(fields, Mapping) and hasattr(fields.get(name), "shape")


def _parts(rows: Mapping[Names, Row]) -> dict[Names, Row]:
    """The rows of what WeightNorm wraps: directions and scales are parameters of their own."""
    return {
        (part, *names): Row(row.index, row.path, row.fields, (*row.below, f"{part}_state"))
        for names, row in rows.items()
        for part in ("direction", "scale")
    }


def _is_placeholder(names: Names, leaf: Leaf, fields: Mapping[str, Any]) -> bool:
    """Whether this is what Adafactor has where it keeps nothing: one zero."""
    level: Any = fields
    for name in names[:-1]:
        level = level[name]
    adafactor = {"v_row", "v_col", "v", "m"}
    return set(level) == adafactor and leaf.shape[-1:] == (1,) and not np.any(np.asarray(leaf))


@cache
def _fields() -> dict[str, dict[str, set[int]]]:
    """`Type.field` of the new states -> legacy field -> signs that it may have there."""
    found: dict[str, dict[str, set[int]]] = {}
    for entry in ENTRIES.values():
        for own in entry.state:
            found.setdefault(own.exact, {}).setdefault(own.legacy, set()).add(1)
            for stock in own.stock:
                found.setdefault(stock, {}).setdefault(own.legacy, set()).add(own.stock_sign)
    return found


@cache
def _types_of_negated() -> tuple[str, ...]:
    """The types of the state of the one stock recipe that keeps a legacy value negated."""
    (entry,) = [e for e in ENTRIES.values() if any(f.stock_sign == -1 for f in e.state)]
    recipe, _ = entry.stock_recipe(entry.defaults() | {"learning_rate": 0.1})
    state = jax.eval_shape(build(recipe).init, {"w": jax.ShapeDtypeStruct((2,), jnp.float32)})
    return _types(state)


def _types(chain: Any) -> tuple[str, ...]:
    """The types of a chain's states; a rate has one or not, as it is a schedule or a number."""
    names = (type(item).__name__ for item in chain)
    return tuple("EmptyState" if name == "ScaleByScheduleState" else name for name in names)
