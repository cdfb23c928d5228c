"""The training state: a `TrainState` whose transformation is the learner."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax.core import meta
from jax.sharding import PartitionSpec

from optax_bridge import ExactTransformation, TrainState
from optax_bridge.metadata.axis_metadata import has_boxes, unboxed
from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree
from optax_bridge.spmd.learner import BaseLearner
from optax_bridge.spmd.learner.data import Updates, merge_dicts
from optax_bridge.spmd.module import functional
from optax_bridge.spmd.optimizers.data import OptParam
from optax_bridge.spmd.trees import TensorSpec


class TrainerState(NamedTuple):
    """The arrays that a trainer saves and restores.

    Attributes:
      prng_key: the key that the next step splits.
      model: the parameters.
      learner: the learner's state.
    """

    prng_key: Leaf  # an array; a `TensorSpec` in a tree of specs
    model: Params
    learner: OptState


class SpmdTrainState(TrainState):
    """The state of a trainer: `params` are the model's, `opt_state` is the learner's.

    Attributes:
      prng_key: the key that the next step splits.
    """

    prng_key: Leaf = None

    @property
    def trainer_state(self) -> TrainerState:
        """The part of it that is saved."""
        return TrainerState(self.prng_key, self.params, self.opt_state)

    def with_trainer_state(self, state: TrainerState) -> "SpmdTrainState":
        """The same with another `TrainerState`."""
        return self.replace(prng_key=state.prng_key, params=state.model, opt_state=state.learner)


def state_specs(tx: ExactTransformation, learner: BaseLearner, param_specs: PyTree) -> TrainerState:
    """`TensorSpec`s of a state: dtypes as they will be, axes as the learner says.

    Args:
      tx: the learner as a transformation.
      learner: the learner.
      param_specs: `ParameterSpec`s of the model.
    """
    key = jax.eval_shape(jax.random.PRNGKey, 0)
    params = jax.tree.map(
        lambda spec: jax.ShapeDtypeStruct(tuple(spec.shape), spec.dtype), param_specs
    )
    learner_state = jax.eval_shape(tx.init, params)
    learner_specs = learner.create_state_partition_specs(param_specs)

    def spec_of(leaf: Leaf, spec: TensorSpec) -> TensorSpec:
        return TensorSpec(
            shape=leaf.shape,
            dtype=leaf.dtype,
            mesh_axes=spec.mesh_axes,
            memory_kind=spec.memory_kind,
        )

    return TrainerState(
        prng_key=TensorSpec(shape=key.shape, dtype=key.dtype, mesh_axes=PartitionSpec(None)),
        model=jax.tree.map(spec_of, params, param_specs),
        learner=jax.tree.map(spec_of, learner_state, learner_specs),
    )


def opt_params(values: Params, specs: PyTree) -> Params:
    """`OptParam`s from parameters and their `ParameterSpec`s."""
    return jax.tree.map(
        lambda value, spec: OptParam(
            value=value,
            factorization_spec=spec.factorization,
            weight_decay_scale=spec.weight_decay_scale,
        ),
        values,
        specs,
    )


def learner_transformation(learner: BaseLearner, param_specs: PyTree) -> ExactTransformation:
    """A learner as the transformation of a `TrainState`.

    Args:
      learner: the learner.
      param_specs: `ParameterSpec`s of the model.

    Returns:
      The transformation; its state is the learner's. In boxes with the axes of a mesh it comes
      when the parameters are in boxes, as the learner's own specs say.
    """

    def init(params: Params) -> OptState:
        state = learner.init(opt_params(unboxed(params), param_specs))
        return _box(state, learner, param_specs) if has_boxes(params) else state

    def step(grads: PyTree, state: PyTree, params: Params) -> tuple[Params, OptState]:
        updates = Updates(
            opt_params=opt_params(unboxed(params), param_specs), delta_updates=unboxed(grads)
        )
        new_params, collection = functional(
            learner, None, unboxed(state), (updates,), method="update", is_training=True
        )
        return new_params, merge_dicts(unboxed(state), collection.state_updates)

    def update(grads: PyTree, state: PyTree, params: Params = None) -> tuple[PyTree, OptState]:
        if params is None:
            raise ValueError("a learner's update needs the parameters")
        new_params, new_state = step(grads, state, params)
        return jax.tree.map(jnp.subtract, new_params, unboxed(params)), new_state

    return ExactTransformation(init, update, step, hyper_params={})


def _box(state: PyTree, learner: BaseLearner, param_specs: PyTree) -> PyTree:
    """The learner's state in boxes with the axes of its specs."""
    specs = learner.create_state_partition_specs(param_specs)
    leaves, treedef = jax.tree.flatten(state)
    flat_specs, spec_treedef = jax.tree.flatten(specs)
    if treedef != spec_treedef:
        raise ValueError(
            "the learner's state and its partition specs are of different structure: expected "
            f"{treedef}, found {spec_treedef}. Correct `partition` of the transformation, or "
            "`create_state_partition_specs` of the learner."
        )
    return treedef.unflatten(
        [_in_box(leaf, spec) for leaf, spec in zip(leaves, flat_specs, strict=True)]
    )


def _in_box(leaf: Leaf, spec: TensorSpec) -> Leaf:
    axes = tuple(spec.mesh_axes or ())
    rank = jnp.ndim(leaf)
    return meta.Partitioned(leaf, (*axes, *[None] * (rank - len(axes)))) if rank else leaf


def raw_key(key: jax.Array) -> jax.Array:
    """The bits of a key: what is saved and what steps split."""
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(key) if is_typed else key
