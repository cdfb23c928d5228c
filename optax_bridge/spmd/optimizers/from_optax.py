"""Any Optax transformation, this project's exact ones too, as an optimizer of a learner."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax.core import meta
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

import legacy_optim
from optax_bridge import (
    ExactTransformation,
    FactoredPartitioned,
    Role,
    from_legacy,
    with_axis_metadata,
)
from optax_bridge.metadata.axis_metadata import (
    is_box,
    leaves_with_path,
    names_of,
    unboxed,
    value_of,
)
from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree, Updates
from optax_bridge.spmd.config import ConfigOr, InstantiableConfig, maybe_instantiate
from optax_bridge.spmd.optimizers.data import (
    OptParam,
    OptStateSpec,
    PartitionedGradientTransformation,
)
from optax_bridge.spmd.optimizers.schedules import Schedule, as_schedule_fn
from optax_bridge.spmd.trees import VDict

# A row here is the axis that `v_row` is a mean over; a row of optax_bridge is the axis it keeps.
_ROLES = {"row": Role.COLUMN, "col": Role.ROW, None: Role.NONE}


class ExactPartitionedTransformation(PartitionedGradientTransformation):
    """A partitioned transformation that can also take the step itself.

    Attributes:
      step: `step(grads, state, params) -> (new_values, new_state)`, `params` being `OptParam`s.
    """

    step: Callable[..., tuple[Params, OptState]]

    def __new__(
        cls,
        init: Callable[[Params], OptState],
        update: Callable[..., tuple[Updates, OptState]],
        partition: Callable[[PyTree], PyTree],
        step: Callable[..., tuple[Params, OptState]],
    ):
        """Makes the transformation; the arguments are its attributes."""
        self = super().__new__(cls, init, update, partition)
        self.step = step
        return self

    def __getnewargs__(self):
        return (*self, self.step)


Run = Callable[..., tuple[PyTree, OptState]]  # of updates, state and parameters


def wrap(
    tx: PartitionedGradientTransformation,
    init: Callable[[Params], OptState],
    partition: Callable[[PyTree], PyTree],
    through: Callable[[Run, bool], Run],
) -> PartitionedGradientTransformation:
    """A transformation around another one; it takes exact steps if that does."""
    update = through(tx.update, False)
    if isinstance(tx, ExactPartitionedTransformation):
        return ExactPartitionedTransformation(init, update, partition, through(tx.step, True))
    return PartitionedGradientTransformation(init, update, partition)


def from_optax(tx: optax.GradientTransformation) -> PartitionedGradientTransformation:
    """An Optax transformation whose state's specs are derived from the parameters'.

    Where a parameter has a `FactorizationSpec`, `optax_bridge.adafactor` within reduces over those
    axes; where it has none, by the lengths of the axes, as `flax.optim` did. A repeated layer's
    first axis is a batch of parameters.

    Args:
      tx: the transformation.

    Returns:
      The transformation; an `ExactPartitionedTransformation` if `tx` takes exact steps.

    Raises:
      ValueError: `tx` waits for a learning rate at each step, and a learner gives none.
    """
    if _lacks_learning_rate(tx):
        raise ValueError(
            "the optimizer has no learning rate, and a learner's steps give it none. Set it: "
            "optimizer.learning_rate, a number or a schedule (`with_learning_rate` for those of "
            "this package)."
        )
    with_boxes = with_axis_metadata(tx)

    def init(params: Params) -> OptState:
        return unboxed(with_boxes.init(_box(params)))

    def update(updates: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        updates, state = with_boxes.update(updates, state, _box(params))
        return unboxed(updates), unboxed(state)

    def partition(specs: PyTree) -> PyTree:
        state = jax.eval_shape(with_boxes.init, _box(specs, named=True))
        treedef = jax.tree.structure(state, is_leaf=is_box)
        return treedef.unflatten([_spec(leaf) for _, leaf in leaves_with_path(state)])

    if not isinstance(with_boxes, ExactTransformation):
        return PartitionedGradientTransformation(init, update, partition)
    exact = with_boxes.step

    def step(grads: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        values, state = exact(grads, state, _box(params))
        return unboxed(values), unboxed(state)

    return ExactPartitionedTransformation(init, update, partition, step)


Transformation = ConfigOr[
    PartitionedGradientTransformation | optax.GradientTransformation | legacy_optim.OptimizerDef
]


def as_partitioned(transformation: Transformation, where: str) -> PartitionedGradientTransformation:
    """Any kind of transformation, or the config of one, as a partitioned one."""
    tx: object = maybe_instantiate(transformation)
    if isinstance(tx, legacy_optim.OptimizerDef):
        tx = from_legacy(tx)
    if isinstance(tx, optax.GradientTransformation):
        try:
            tx = from_optax(tx)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    if not isinstance(tx, PartitionedGradientTransformation):
        hint = " Give its gradient_transformation()." if isinstance(tx, optax.MultiSteps) else ""
        raise ValueError(
            f"{where}: expected a PartitionedGradientTransformation, a transformation of Optax or "
            f"a definition of legacy_optim, found {type(tx).__name__}: {tx!r}.{hint}"
        )
    return tx


def climbs(tx: PartitionedGradientTransformation, specs: PyTree) -> bool:
    """True if the first step from 0 has the gradient's sign, as where nothing turns it round."""
    values = jax.tree.map(lambda spec: jnp.zeros([1] * len(spec.shape)), specs)
    params = jax.tree.map(lambda value: OptParam(value, None, None), values)
    grads = jax.tree.map(jnp.ones_like, values)
    take_step = tx.step if isinstance(tx, ExactPartitionedTransformation) else tx.update
    try:
        changes, _ = take_step(grads, tx.init(params), params)
        signs = [float(change.sum()) for change in jax.tree.leaves(changes)]
    except Exception:  # any error of a user's function on these shapes
        return False
    return min(signs, default=0.0) >= 0 < max(signs, default=0.0)


def with_learning_rate(
    optimizer: Callable[..., optax.GradientTransformation]
    | InstantiableConfig[optax.GradientTransformation],
    learning_rate: Schedule,
) -> optax.GradientTransformation:
    """An optimizer of Optax or optax_bridge with a schedule of this package.

    Steps of these schedules begin at 1, where Optax and optax_bridge count from 0.

        config_for_function(with_learning_rate).set(
            optimizer=config_for_function(optax_bridge.adam).set(b1=0.95),
            learning_rate=config_for_function(cosine_with_linear_warmup).set(
                peak_lr=1e-3, max_step=1000
            ),
        )

    Args:
      optimizer: a config of the optimizer, with a field `learning_rate`; or a function of it.
      learning_rate: the schedule.
    """
    schedule = as_schedule_fn(learning_rate)

    def from_zero(count: ArrayLike) -> ArrayLike:
        return schedule(count + 1)

    if isinstance(optimizer, InstantiableConfig):
        return optimizer.clone(learning_rate=from_zero).instantiate()
    return optimizer(learning_rate=from_zero)


def _lacks_learning_rate(tx: optax.GradientTransformation) -> bool:
    """True if a part of the transformation has a learning rate that is None."""
    return isinstance(tx, ExactTransformation) and (
        tx.hyper_params.get("learning_rate", 0.0) is None
        or any(map(_lacks_learning_rate, tx.inner))
    )


def _box(tree: PyTree, stacked: int = 0, *, named: bool = False) -> PyTree:
    """The arrays of parameters, boxed where their axes have roles; of specs, with their axes."""
    if isinstance(tree, dict):
        inner = stacked + isinstance(tree, VDict)
        return type(tree)({k: _box(v, inner, named=named) for k, v in tree.items()})

    def box_leaf(leaf: Leaf) -> Leaf:
        if isinstance(leaf, OptParam):
            value, factorization, axes = leaf.value, leaf.factorization_spec, None
        elif named:
            value = jax.ShapeDtypeStruct(tuple(leaf.shape), leaf.dtype or jnp.float32)
            factorization, axes = getattr(leaf, "factorization", None), leaf.mesh_axes
        else:
            return leaf
        rank = len(value.shape)
        names = (*(axes or ()), *[None] * (rank - len(axes or ())))
        if factorization is None:
            return meta.Partitioned(value, names) if named else value
        roles = [_ROLES[role] for role in factorization.axes]
        roles[:stacked] = [Role.BATCH if r is Role.NONE else r for r in roles[:stacked]]
        return FactoredPartitioned(value, names, roles=tuple(roles))

    return jax.tree.map(box_leaf, tree)


def _spec(leaf: Leaf) -> OptStateSpec:
    value = value_of(leaf)
    names = names_of(leaf) if is_box(leaf) else None
    axes = PartitionSpec(*(names or [None] * len(value.shape)))
    return OptStateSpec(shape=value.shape, dtype=value.dtype, mesh_axes=axes)
