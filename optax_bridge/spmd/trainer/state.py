"""The training state: a `TrainState` whose transformation is the learner; one step of it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.core import meta
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from optax_bridge import ExactTransformation, TrainState
from optax_bridge.metadata.axis_metadata import has_boxes, unboxed
from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree
from optax_bridge.spmd.config import ConfigBase, maybe_instantiate
from optax_bridge.spmd.evaler import forward_pass
from optax_bridge.spmd.input import Input
from optax_bridge.spmd.layer import BaseModel
from optax_bridge.spmd.learner import BaseLearner, ForwardFn, ForwardOutputs
from optax_bridge.spmd.learner.gradients import Updates, merge_dicts
from optax_bridge.spmd.module import functional
from optax_bridge.spmd.optimizers.data import OptParam, PartitionedGradientTransformation
from optax_bridge.spmd.optimizers.from_optax import ExactPartitionedTransformation
from optax_bridge.spmd.trees import TensorSpec, cast_floats

_DTYPES_OF_SCALARS = np.dtype(np.float32), np.dtype(np.bool_)


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
    """`TensorSpec`s of a state: dtypes as they will be, axes as the learner says."""
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
    """`OptParam`s from parameters and their `ParameterSpec`s; without roles if these are None."""
    if specs is None:
        return jax.tree.map(lambda value: OptParam(value, None, None), values)
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
      param_specs: `ParameterSpec`s of the model; None for parameters without roles or axes.

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
    """The bits of a key, which are saved and which steps split."""
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(key) if is_typed else key


def split_key(key: jax.Array, count: int) -> jax.Array:
    """`jax.random.split` of a raw key, within a program.

    For CPUs JAX compiles Threefry (Salmon et al., 2011) to a loop, which costs each step 0.05 ms of
    the processor's time; written out, as JAX has it elsewhere, it is one kernel.
    """
    config: Any = jax.config
    if config.jax_default_prng_impl != "threefry2x32":
        return jax.random.split(key, count)
    counts = jnp.arange(2 * count, dtype=jnp.uint32)
    if config.jax_threefry_partitionable:
        return jnp.stack(_threefry(key, jnp.zeros_like(counts[:count]), counts[:count]), axis=1)
    return jnp.concatenate(_threefry(key, counts[:count], counts[count:])).reshape(count, 2)


def _threefry(key: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 with 20 rounds: a key uint32[2], counts uint32[n] twice, bits likewise."""
    keys = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA)
    x, y = x + keys[0], y + keys[1]
    for turn in range(1, 6):
        for bits in (13, 15, 26, 6) if turn % 2 else (17, 29, 16, 24):
            x = x + y
            y = (y << jnp.uint32(bits) | y >> jnp.uint32(32 - bits)) ^ x
        x, y = x + keys[turn % 3], y + keys[(turn + 1) % 3] + jnp.uint32(turn)
    return x, y


def train_step(
    state: TrainerState,
    input_batch: PyTree,
    *,
    model: BaseModel,
    param_specs: PyTree,
    learner: BaseLearner,
    input: Input,
    train_dtype: DTypeLike | None,
) -> tuple[TrainerState, dict[str, PyTree]]:
    """Forward pass, backward pass and update, as a pure function of state and batch."""
    batch = input.dispatch_global_batch(_cast(input_batch, train_dtype))
    new_key, noise_key, forward_key, learner_key = split_key(state.prng_key, 4)
    inputs = {"input_batch": batch, "forward_key": forward_key, "param_noise_key": noise_key}
    outputs, collection = functional(
        learner,
        learner_key,
        state.learner,
        {
            "fn": _forward_fn(model, train_dtype),
            "inputs": inputs,
            "opt_params": opt_params(state.model, param_specs),
        },
        method="forward_and_backward",
        is_training=True,
    )
    # State updates of a forward pass in another dtype would change the parameters' own.
    new_params = jax.tree.map(
        lambda new, old: new.astype(old.dtype),
        outputs.backward_outputs.updated_params,
        state.model,
    )
    new_state = TrainerState(
        prng_key=new_key,
        model=new_params,
        learner=merge_dicts(state.learner, collection.state_updates),
    )
    forward_outputs = outputs.forward_outputs
    summaries = {
        "model": forward_outputs.output_collection.summaries,
        "learner": collection.summaries,
    }
    return new_state, {
        "summaries": summaries,
        "loss": forward_outputs.loss,
        "aux": forward_outputs.aux,
    }


def _cast(tree: PyTree, dtype: DTypeLike | None) -> PyTree:
    return tree if dtype is None else cast_floats(tree, to_dtype=dtype)


def _forward_fn(model: BaseModel, train_dtype: DTypeLike | None) -> ForwardFn:
    def forward(*, model_params: Params, inputs: PyTree) -> ForwardOutputs:
        params = model.apply_parameter_noise_recursively(
            inputs["param_noise_key"], _cast(model_params, train_dtype)
        )
        loss, aux, collection = forward_pass(
            model, inputs["forward_key"], params, inputs["input_batch"], is_training=True
        )
        return ForwardOutputs(loss=loss, aux=aux, output_collection=collection)

    return forward


def is_finite(outputs: dict[str, PyTree]) -> jax.Array:
    """True if a step's loss is finite, and the norm of its gradients if the learner tells it."""
    gradient_norm = outputs["summaries"]["learner"].get("gradient_norm", 0.0)
    return jnp.isfinite(outputs["loss"]) & jnp.isfinite(gradient_norm)


def with_scalars(outputs: dict[str, PyTree]) -> dict[str, PyTree]:
    """A step's outputs, with their scalars once more in one array, "scalars", of float32.

    From a GPU one number takes as long as all, some 0.3 ms.
    """
    read = {name: tree for name, tree in outputs.items() if name != "aux"}
    arrays = [jnp.asarray(x) for x in jax.tree.leaves(read)]
    scalars = jnp.stack([x.astype(jnp.float32) for x in arrays if _is_scalar(x)])
    return {**outputs, "scalars": jax.lax.with_sharding_constraint(scalars, PartitionSpec())}


def read_scalars(outputs: dict[str, PyTree]) -> dict[str, PyTree]:
    """Waits for the outputs of `with_scalars`; returns those of the step, scalars as NumPy's."""
    numbers = iter(np.asarray(outputs["scalars"]))
    read = {name: tree for name, tree in outputs.items() if name not in ("aux", "scalars")}
    leaves, treedef = jax.tree.flatten(read)
    return treedef.unflatten([x.dtype.type(next(numbers)) if _is_scalar(x) else x for x in leaves])


def _is_scalar(x: jax.Array) -> bool:
    return x.shape == () and x.dtype in _DTYPES_OF_SCALARS


def transformation_of(config: object) -> Any:
    """Returns the transformation of a config: a trainer's is its learner."""
    if isinstance(config, ConfigBase) and isinstance(getattr(config, "learner", None), ConfigBase):
        config = config.learner
    if isinstance(config, BaseLearner.Config):
        return learner_transformation(config.clone(name="learner").instantiate(parent=None), None)
    optimizer: Any = maybe_instantiate(config)
    if isinstance(optimizer, PartitionedGradientTransformation):
        return _of_partitioned(optimizer)
    return optimizer


def _of_partitioned(tx: PartitionedGradientTransformation) -> optax.GradientTransformation:
    def init(params: Params) -> OptState:
        return tx.init(opt_params(params, None))

    def update(updates: PyTree, state: OptState, params: Params = None) -> tuple[PyTree, OptState]:
        return tx.update(updates, state, opt_params(params, None))

    if not isinstance(tx, ExactPartitionedTransformation):
        return optax.GradientTransformation(init, update)
    exact = tx.step

    def step(grads: PyTree, state: OptState, params: Params) -> tuple[Params, OptState]:
        return exact(grads, state, opt_params(params, None))

    return ExactTransformation(init, update, step)
