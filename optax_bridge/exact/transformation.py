"""Gradient transformations that can also hand over the new parameters themselves.

Optax's protocol returns an *update* that the caller adds to the parameters. Where a legacy
optimizer touches a parameter twice (decoupled weight decay: ``(p - a) - b``), no update reproduces
its rounding. An
`ExactTransformation` is an ordinary Optax transformation with one more function, `step`, that
returns the new parameters; `optax_bridge.TrainState` takes that path and so follows the legacy
optimizer bit for bit.
"""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

import legacy_optim
from optax_bridge.metadata.axis_metadata import (
    Reduced,
    box_of,
    boxed_like,
    is_box,
    key_names,
    keystr,
    leaves_with_path,
    names_of,
    value_of,
    whole_or_nothing,
    with_axes,
)

# A learning rate (or another numeric hyper-parameter): a number, a schedule from the step count
# (int32 scalar), or None, which means that every call gives it.
ScalarOrSchedule = float | jax.Array | optax.Schedule


class Leaf(NamedTuple):
    """What a plan is made from: one parameter.

    Attributes:
      path: as it reads in messages, `['dense']['kernel']`.
      names: the steps of the path.
      shape: of the array.
      axes: the axes' names, where a box gives them.
      roles: the axes' roles, where a box gives them.
    """

    path: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    axes: tuple[Any, ...] | None
    roles: tuple[Any, ...] | None


class ExactTransformation(optax.GradientTransformationExtraArgs):
    """An Optax transformation that also computes the new parameters.

    It unpacks, chains, masks and compares like any `optax.GradientTransformationExtraArgs`.

    Attributes:
      step: `step(grads, state, params, **extra) -> (new_params, new_state)`.
      hyper_params: name -> value as given to the constructor; each can be given anew per call, as a
        keyword argument of `update` and `step`.
      inner: the transformations that this one is made of; what they take per call, it takes.
    """

    step: Callable[..., tuple[Any, Any]]
    hyper_params: Mapping[str, Any]
    inner: tuple[optax.GradientTransformation, ...]

    def __new__(
        cls,
        init: Callable[..., Any],
        update: Callable[..., tuple[Any, Any]],
        step: Callable[..., tuple[Any, Any]] | None = None,
        hyper_params: Mapping[str, Any] | None = None,
        inner: Sequence[optax.GradientTransformation] = (),
    ):
        """Makes the transformation; the arguments are its attributes."""
        if step is None or hyper_params is None:  # as a pytree it is rebuilt from its two functions
            return vars(update)["exact"]
        self = super().__new__(cls, init, update)
        self.step = step
        self.hyper_params = dict(hyper_params)
        self.inner = tuple(inner)
        vars(update)["exact"] = self  # so that `accepted_arguments` knows it within a chain
        return self

    def __getnewargs__(self):  # a NamedTuple's own knows only init and update
        return self.init, self.update, self.step, self.hyper_params, self.inner


def step(
    tx: optax.GradientTransformation,
    grads: Any,
    state: Any,
    params: Any,
    **extra: Any,
) -> tuple[Any, Any]:
    """Takes one step with any transformation, by the exact path where it has one.

    Args:
      tx: any Optax transformation.
      grads: gradients, a tree like `params`.
      state: the state that `tx.init(params)` or an earlier step returned.
      params: the parameters.
      **extra: further arguments of `tx.update`, e.g. `learning_rate=` or `value=`.

    Returns:
      The new parameters and the new state.
    """
    if isinstance(tx, ExactTransformation):
        return tx.step(grads, state, params, **extra)
    updates, new_state = optax.with_extra_args_support(tx).update(grads, state, params, **extra)
    return optax.apply_updates(params, updates), new_state


def check_transformation(tx: Any, where: str = "tx") -> None:
    """Raises TypeError where this is no transformation, with the way to one from the old API."""
    if isinstance(tx, legacy_optim.OptimizerDef):
        raise TypeError(
            f"{where} is {type(tx).__name__}, a definition of the old API. Give "
            f"{where}=optax_bridge.from_legacy(definition)."
        )
    if isinstance(tx, legacy_optim.Optimizer):
        raise TypeError(
            f"{where} is an Optimizer of the old API. TrainState.from_legacy(optimizer) takes it "
            "over with parameters and state; optax_bridge.from_legacy(optimizer.optimizer_def) is "
            "the transformation alone."
        )
    if isinstance(tx, type) or not (hasattr(tx, "init") and hasattr(tx, "update")):
        found = getattr(tx, "__qualname__", type(tx).__name__)
        raise TypeError(f"{where}: expected an Optax transformation, found {found}")


def is_zero(value: Any) -> bool:
    """Whether a hyper-parameter is known to be zero; a traced value may be anything."""
    return not isinstance(value, Tracer) and bool(jnp.ndim(value) == 0 and value == 0)


def minus(hp: SimpleNamespace, param: jax.Array, decrement: jax.Array) -> jax.Array:
    """The plain way to apply a step: `param - decrement`."""
    del hp
    return param - decrement


def minus_and_decay(hp: SimpleNamespace, param: jax.Array, decrement: jax.Array) -> jax.Array:
    """A step, then decoupled decay: `(param - decrement) - lr * weight_decay * param`."""
    return (param - decrement) - hp.learning_rate * hp.weight_decay * param


def always(hp: SimpleNamespace) -> bool:
    """Holds under any hyper-parameters."""
    del hp
    return True


def never(hp: SimpleNamespace) -> bool:
    """Holds under no hyper-parameters."""
    del hp
    return False


def no_decay(hp: SimpleNamespace) -> bool:
    """Whether `weight_decay` is known to be zero."""
    return is_zero(hp.weight_decay)


def decays(hp: SimpleNamespace) -> bool:
    """Whether `weight_decay` may be other than zero."""
    return not no_decay(hp)


def leafwise(
    state_type: Callable[..., Any],
    init_leaf: Callable[..., Sequence[Any]],
    step_leaf: Callable[..., tuple[jax.Array, Sequence[Any]]],
    hyper_params: Mapping[str, Any],
    *,
    reads_params: Callable[[SimpleNamespace], bool] = never,
    apply: Callable[..., jax.Array] = minus,
    is_subtraction: Callable[[SimpleNamespace], bool] = always,
    plan: Callable[[list[Leaf]], Sequence[Any]] | None = None,
) -> ExactTransformation:
    """Makes a transformation from what happens to one parameter.

    Parameters and gradients may be in boxes (`optax_bridge.metadata`), each for itself; the
    state comes in boxes like the parameters'.

    Args:
      state_type: NamedTuple type with a `count` (int32 scalar, steps taken) and then one field for
        each value that `init_leaf` returns; each field holds a tree like the parameters, or None.
      init_leaf: `init_leaf(param) -> fields`; a field that is None stays None, one that keeps some
        of the parameter's axes is a `Reduced`.
      step_leaf: `step_leaf(hp, count, grad, param, *fields) -> (decrement, new_fields)`, where `hp`
        has the hyper-parameters of this step as attributes.
      hyper_params: name -> value; a callable value is a schedule and is called with the count.
      reads_params: whether `step_leaf` needs the parameter's value under these hyper-parameters.
      apply: `apply(hp, param, decrement) -> new_param`, the order of operations of the exact path.
      is_subtraction: whether `apply` is `param - decrement` under these hyper-parameters, so that
        `-decrement` as an update gives the same bits.
      plan: what `init_leaf` and `step_leaf` get as one more, first argument, for each parameter.

    Returns:
      The transformation. `update` raises ValueError where it needs `params` and gets none.
    """

    def planned(params: Any) -> list[tuple[Any, ...]]:
        if plan is None:
            return [()] * len(jax.tree.leaves(params))
        return [(item,) for item in plan(_described(params))]

    def init(params: Any) -> Any:
        leaves, treedef = jax.tree.flatten(params, is_leaf=is_box)
        rows = []
        for (path, leaf), own in zip(leaves_with_path(params), planned(params), strict=True):
            fields = init_leaf(*own, value_of(leaf))
            rows.append([_field(leaf, field, path) for field in fields])
        columns = zip(*rows, strict=True) if leaves else _columns_of_empty(state_type)
        return state_type(jnp.zeros([], jnp.int32), *(_unflatten(treedef, c) for c in columns))

    def run(
        hp: SimpleNamespace, grads: Any, state: Any, params: Any, finish: Callable[..., jax.Array]
    ) -> tuple[Any, Any]:
        count, *trees = state
        leaves, treedef = jax.tree.flatten(params, is_leaf=is_box)
        columns = [_flatten_up_to(treedef, tree) for tree in trees]
        rows = zip(planned(params), treedef.flatten_up_to(grads), leaves, *columns, strict=True)
        outputs, new_rows = [], []
        for own, grad, leaf, *boxes in rows:
            param, fields = value_of(leaf), [value_of(box) for box in boxes]
            decrement, new_fields = step_leaf(*own, hp, count, value_of(grad), param, *fields)
            outputs.append(boxed_like(leaf, finish(hp, param, decrement)))
            pairs = zip(boxes, new_fields, strict=True)
            new_rows.append([boxed_like(box, value) for box, value in pairs])
        new_columns = zip(*new_rows, strict=True) if new_rows else columns
        new_trees = [_unflatten(treedef, column) for column in new_columns]
        return treedef.unflatten(outputs), state_type(count + 1, *new_trees)

    def exact(grads: Any, state: Any, params: Any, **extra: Any) -> tuple[Any, Any]:
        return run(resolve(hyper_params, state.count, extra), grads, state, params, apply)

    def update(grads: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        hp = resolve(hyper_params, state.count, extra)
        subtraction = is_subtraction(hp)
        if params is None:
            if reads_params(hp) or not subtraction:
                raise ValueError(
                    "update(grads, state) needs the parameters with these hyper-parameters: "
                    f"{_shown(hyper_params)}. Call update(grads, state, params)."
                )
            params = grads  # only their dtypes are looked at
        return run(hp, grads, state, params, _negated if subtraction else _difference)

    def _difference(hp: SimpleNamespace, param: jax.Array, decrement: jax.Array) -> jax.Array:
        return apply(hp, param, decrement) - param

    return ExactTransformation(init, update, exact, hyper_params)


def direction(tx: ExactTransformation) -> optax.GradientTransformation:
    """The piece of an optimizer that gives the direction, for a chain of one's own.

    Args:
      tx: an optimizer whose learning rate is -1, so that its update is the direction itself.

    Returns:
      A plain transformation; it takes no arguments per call.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return tx.update(updates, state, params)

    return optax.GradientTransformation(tx.init, update)


def resolve(
    hyper_params: Mapping[str, Any], count: jax.Array, given: Mapping[str, Any]
) -> SimpleNamespace:
    """The hyper-parameters of one step: those given now, else schedules at `count`, else constants.

    Raises:
      ValueError: a learning rate was given neither to the constructor nor to this call.
    """
    values = {}
    for name, value in hyper_params.items():
        if name in given:
            value = given[name]
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


def bias_correction(decay: Any, count: jax.Array, param: jax.Array) -> jax.Array:
    """`1 - decay ** (count + 1)`, with the power taken in the parameter's own dtype.

    In bfloat16, `0.999 ** t` is 1 for the first steps and the correction 0: legacy Adam divides by
    it, and so does everything here that is called exact.
    """
    return 1 - decay ** jnp.array(count + 1, jnp.result_type(param))


def _negated(hp: SimpleNamespace, param: jax.Array, decrement: jax.Array) -> jax.Array:
    del hp, param
    return -decrement


def _described(params: Any) -> list[Leaf]:
    described = []
    for path, leaf in leaves_with_path(params):
        where = "params" + keystr(path)
        leaf = box_of(path, leaf)
        roles = getattr(leaf, "roles", None)
        described.append(
            Leaf(
                where,
                key_names(path),
                jnp.shape(value_of(leaf)),
                names_of(leaf, where),
                None if roles is None else tuple(roles),
            )
        )
    return described


def _field(leaf: Any, field: Any, path: Any) -> Any:
    """A field of the state in the box that it gets."""
    if field is None:
        return None
    if not is_box(leaf):
        return field.value if isinstance(field, Reduced) else field
    kept = field if isinstance(field, Reduced) else whole_or_nothing(field, leaf)
    return with_axes(leaf, kept, "params" + keystr(path))


def _columns_of_empty(state_type: Any) -> list[tuple[()]]:
    return [() for _ in state_type._fields[1:]]


def _flatten_up_to(treedef: Any, tree: Any) -> list[Any]:
    return [None] * treedef.num_leaves if tree is None else treedef.flatten_up_to(tree)


def _unflatten(treedef: Any, column: Sequence[Any]) -> Any:
    if column and all(value is None for value in column):
        return None
    return treedef.unflatten(column)


def _shown(hyper_params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in hyper_params.items())
