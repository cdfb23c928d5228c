"""An optimizer's rule for one parameter, from which a transformation is made."""

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jax.tree_util import KeyPath
from jax.typing import DTypeLike

from optax_bridge._internals import are_traced
from optax_bridge._text import describe
from optax_bridge.checks import check_like, check_no_text
from optax_bridge.exact.calls import is_no_number
from optax_bridge.exact.transformation import ExactTransformation
from optax_bridge.metadata.axis_metadata import (
    Reduced,
    box_of,
    boxed_like,
    is_box,
    leaves_with_path,
    names_of,
    value_of,
    whole_or_nothing,
    with_axes,
)
from optax_bridge.metadata.paths import key_names, keystr
from optax_bridge.metadata.trees import (
    AxisName,
    Extra,
    HyperParams,
    Leaf,
    OptState,
    Params,
    PyTree,
    Updates,
)

# A learning rate (or another numeric hyper-parameter): a number, a schedule from the step count
# (int32 scalar), or None if every call passes it. If a schedule or a call gives `jnp.float32(...)`
# and the parameters are in half precision, the exact path yields parameters or moments in float32,
# as flax.optim did; Python numbers change no dtype. The type of a schedule is written out, since
# Optax has no types for mypy.
ScalarOrSchedule = float | jax.Array | Callable[[Any], Any]
Powers = tuple[jax.Array, jax.Array]  # of both decays, see `decay_powers`


class LeafInfo(NamedTuple):
    """One parameter, as a plan sees it."""

    path: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    axes: tuple[AxisName, ...] | None
    roles: tuple[AxisName, ...] | None


@dataclass(frozen=True, eq=False)
class LeafRule:
    """An optimizer's rule for one parameter."""

    state_type: Callable[..., OptState]
    init_leaf: Callable[..., Sequence[PyTree]]
    step_leaf: Callable[..., tuple[jax.Array, Sequence[PyTree]]]
    hyper_params: HyperParams
    reads_params: bool = False
    decay: str | None = None
    apply: Callable[..., jax.Array] | None = None
    plan: Callable[[list[LeafInfo]], Sequence[Hashable]] | None = None
    per_dtype: Callable[..., PyTree] | None = None

    def transformation(self) -> ExactTransformation:
        """The transformation that follows the rule for every parameter."""
        return ExactTransformation(self.init, self.update, self.step, self.hyper_params)

    def init(self, params: Params) -> OptState:
        """The state at step 0."""
        check_no_text(params, "params")
        leaves, treedef = jax.tree.flatten(params, is_leaf=is_box)
        rows = []
        for (path, leaf), plan in zip(leaves_with_path(params), self._plans(params), strict=True):
            fields = self.init_leaf(*plan, value_of(leaf))
            rows.append([_boxed_field(leaf, field, path) for field in fields])
        state_type: Any = self.state_type
        columns = zip(*rows, strict=True) if leaves else [() for _ in state_type._fields[1:]]
        trees = (_unflatten_column(treedef, column) for column in columns)
        return state_type(jnp.zeros([], jnp.int32), *trees)

    def step(
        self, grads: Updates, state: OptState, params: Params, **extra: Extra
    ) -> tuple[Params, OptState]:
        """The exact path: new parameters and new state."""
        hp = resolve(self.hyper_params, state.count, extra)
        return self._run(hp, grads, state, params, self._new_param)

    def update(
        self, grads: Updates, state: OptState, params: Params | None = None, **extra: Extra
    ) -> tuple[Updates, OptState]:
        """Optax's path: updates in the dtype of gradient and parameter, and new state."""
        if "count" not in getattr(state, "_fields", ()):  # every tuple has a method of that name
            wanted = getattr(self.state_type, "__name__", "its own")
            raise TypeError(
                f"state: expected {wanted}, as init(params) returns, found {type(state).__name__}"
            )
        hp = resolve(self.hyper_params, state.count, extra)
        decays = self.decay is not None and not is_zero(getattr(hp, self.decay))
        if params is None:
            if self.reads_params or decays:
                settings = ", ".join(
                    f"{name}={value!r}" for name, value in self.hyper_params.items()
                )
                raise ValueError(
                    f"update(grads, state) needs the parameters when {settings}. Call "
                    "update(grads, state, params)."
                )
            params = grads  # only their dtypes are looked at
        difference = self.apply is not None and (decays or self.decay is None)
        return self._run(hp, grads, state, params, self._difference if difference else _negative)

    def _run(
        self,
        hp: SimpleNamespace,
        grads: Updates,
        state: OptState,
        params: Params,
        finish: Callable[..., jax.Array],
    ) -> tuple[PyTree, OptState]:
        count, *trees = state
        check_like(grads, params, "grads", "Differentiate with respect to the parameters.")
        leaves, treedef = jax.tree.flatten(params, is_leaf=is_box)
        columns = [_flatten_up_to(treedef, tree) for tree in trees]
        grad_leaves = map(value_of, treedef.flatten_up_to(grads))

        def one_leaf(
            plan: tuple[Hashable, ...],
            at: PyTree,
            grad: jax.Array,
            param: jax.Array,
            fields: list[Leaf],
        ) -> tuple[jax.Array, Sequence[PyTree]]:
            decrement, new_fields = self.step_leaf(*plan, hp, at, grad, param, *fields)
            return finish(hp, grad, param, decrement), new_fields

        # Those that are alike are traced once: to trace each takes a quarter of XLA's own time.
        # XLA inlines the calls, so that the program is the same.
        once = jax.jit(one_leaf, static_argnums=0)
        shape_counts = Counter(jnp.shape(value_of(leaf)) for leaf in leaves)
        at = functools.cache(functools.partial(self._at, hp, count))
        outputs, new_rows = [], []
        for plan, grad, leaf, *boxes in zip(
            self._plans(params), grad_leaves, leaves, *columns, strict=True
        ):
            param, fields = value_of(leaf), [value_of(box) for box in boxes]
            shared = shape_counts[jnp.shape(param)] > 1 and are_traced(grad, param, *fields)
            run = once if shared else one_leaf
            output, new_fields = run(plan, at(jnp.result_type(param)), grad, param, fields)
            outputs.append(boxed_like(leaf, output))
            pairs = zip(boxes, new_fields, strict=True)
            new_rows.append([boxed_like(box, value) for box, value in pairs])
        new_columns = zip(*new_rows, strict=True) if new_rows else columns
        new_trees = [_unflatten_column(treedef, column) for column in new_columns]
        return treedef.unflatten(outputs), self.state_type(count + 1, *new_trees)

    def _at(self, hp: SimpleNamespace, count: jax.Array, dtype: DTypeLike) -> PyTree:
        return count if self.per_dtype is None else self.per_dtype(hp, count, dtype)

    def _plans(self, params: Params) -> list[tuple[Hashable, ...]]:
        if self.plan is None:
            return [()] * len(jax.tree.leaves(params))
        return [(item,) for item in self.plan(describe_leaves(params))]

    def _new_param(
        self, hp: SimpleNamespace, grad: jax.Array, param: jax.Array, decrement: jax.Array
    ) -> jax.Array:
        del grad
        if self.apply is None:
            return param - decrement
        return self.apply(hp, param, decrement)

    def _difference(
        self, hp: SimpleNamespace, grad: jax.Array, param: jax.Array, decrement: jax.Array
    ) -> jax.Array:
        return _as_update(self._new_param(hp, grad, param, decrement) - param, grad, param)


def _negative(
    hp: SimpleNamespace, grad: jax.Array, param: jax.Array, decrement: jax.Array
) -> jax.Array:
    del hp
    return _as_update(-decrement, grad, param)


def _as_update(update: jax.Array, grad: jax.Array, param: jax.Array) -> jax.Array:
    """In the dtype that Optax's wrappers expect: they choose between an update and a gradient."""
    return update.astype(jnp.result_type(grad, param))


def difference(new_params: Params, params: Params, grads: Updates) -> Updates:
    """The update that leads, up to rounding, from parameters to new ones."""
    return jax.tree.map(lambda n, p, g: _as_update(n - p, g, p), new_params, params, grads)


def is_zero(value: PyTree) -> bool:
    """True if a hyper-parameter is known to be zero or None, which no traced value is."""
    if value is None:
        return True
    # By NumPy: while `jax.jit` traces, even a known array compared by JAX is a traced value.
    return not isinstance(value, Tracer) and np.ndim(value) == 0 and bool(np.equal(value, 0))


def minus_and_decay(hp: SimpleNamespace, param: jax.Array, decrement: jax.Array) -> jax.Array:
    """A step, then decoupled decay: `(param - decrement) - lr * weight_decay * param`."""
    return (param - decrement) - hp.learning_rate * hp.weight_decay * param


def zeros(count: int) -> Callable[[jax.Array], tuple[jax.Array, ...]]:
    """An `init_leaf` of so many fields of zeros, of the parameter's shape and dtype."""
    return functools.partial(_zeros_like, count)


def _zeros_like(count: int, param: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(jnp.zeros_like(param) for _ in range(count))


def direction(tx: ExactTransformation) -> optax.GradientTransformation:
    """Returns the part of an optimizer that computes the direction, for use in `optax.chain`."""
    record: Any = tx.update

    def update(
        updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        return record.update(updates, state, params)  # not as a use of the optimizer itself

    return optax.GradientTransformation(tx.init, update)


def resolve(hyper_params: HyperParams, count: jax.Array, overrides: HyperParams) -> SimpleNamespace:
    """The hyper-parameters of one step: overrides, else schedules at `count`, else constants."""
    values = {}
    for name, value in hyper_params.items():
        if name in overrides:
            setting, value = value, overrides[name]
            # A flag in the constructor, such as `nesterov`, is a flag here too.
            is_number = setting is None or not is_no_number(setting)
            if is_number and is_no_number(value):
                raise TypeError(
                    f"{name}=: expected a number, an array or a schedule for this step, found "
                    f"{describe(value)}"
                )
        if callable(value) and not isinstance(
            value, type
        ):  # a dtype class is a setting, no schedule
            value = value(count)
        values[name] = value
    if values.get("learning_rate", 0.0) is None:
        raise ValueError(
            "no learning rate: give one to the optimizer's constructor (a number or a schedule), "
            "or to each step, e.g. state.apply_gradients(grads=grads, learning_rate=1e-3)"
        )
    return SimpleNamespace(**values)


def decay_powers(hp: SimpleNamespace, count: jax.Array, dtype: DTypeLike) -> Powers:
    """A `per_dtype`: `b1 ** (count + 1)` and `b2 ** (count + 1)`, in the parameters' own dtype."""
    t = jnp.array(count + 1, dtype)
    return hp.b1**t, hp.b2**t


def describe_leaves(params: Params) -> list[LeafInfo]:
    """The parameters as a plan sees them."""
    leaves = []
    for path, leaf in leaves_with_path(params):
        where = "params" + keystr(path)
        leaf = box_of(path, leaf)
        roles = getattr(leaf, "roles", None)
        leaves.append(
            LeafInfo(
                where,
                key_names(path),
                jnp.shape(value_of(leaf)),
                names_of(leaf, where),
                None if roles is None else tuple(roles),
            )
        )
    return leaves


def _boxed_field(leaf: Leaf, field: PyTree, path: KeyPath) -> PyTree:
    """A field of the state in the box that it gets."""
    if field is None:
        return None
    if not is_box(leaf):
        return field.value if isinstance(field, Reduced) else field
    reduced = field if isinstance(field, Reduced) else whole_or_nothing(field, leaf)
    return with_axes(leaf, reduced, "params" + keystr(path))


def _flatten_up_to(treedef: Any, tree: PyTree) -> list[PyTree]:
    return [None] * treedef.num_leaves if tree is None else treedef.flatten_up_to(tree)


def _unflatten_column(treedef: Any, column: Sequence[PyTree]) -> PyTree:
    if column and all(value is None for value in column):
        return None
    return treedef.unflatten(column)
