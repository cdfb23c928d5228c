"""One step of a training, as a pure function of state and batch."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from optax_bridge.metadata.trees import Params, PyTree
from optax_bridge.spmd.forward import forward_pass
from optax_bridge.spmd.input import Input
from optax_bridge.spmd.layer import BaseModel
from optax_bridge.spmd.learner import BaseLearner, ForwardOutputs
from optax_bridge.spmd.learner.data import merge_dicts
from optax_bridge.spmd.module import functional
from optax_bridge.spmd.trainer.state import TrainerState, opt_params
from optax_bridge.spmd.trees import cast_floats


class StepParts(NamedTuple):
    """The parts of a step other than its state.

    Attributes:
      model: the model.
      param_specs: its `ParameterSpec`s.
      learner: the learner.
      input: the input, which distributes a batch.
      train_dtype: what floats are cast to for forward and backward pass; None: not cast.
    """

    model: BaseModel
    param_specs: PyTree
    learner: BaseLearner
    input: Input
    train_dtype: DTypeLike | None


def train_step(
    parts: StepParts, state: TrainerState, input_batch: PyTree
) -> tuple[TrainerState, dict[str, PyTree]]:
    """Forward pass, backward pass and update.

    Args:
      parts: what the step is made of.
      state: the state.
      input_batch: a global batch.

    Returns:
      The next state, and {"summaries": {"model", "learner"}, "loss", "aux"}.
    """
    train_dtype = parts.train_dtype

    def cast(tree: PyTree) -> PyTree:
        return tree if train_dtype is None else cast_floats(tree, to_dtype=train_dtype)

    def forward(*, model_params: Params, inputs: PyTree) -> ForwardOutputs:
        params = parts.model.apply_parameter_noise_recursively(
            inputs["param_noise_key"], cast(model_params)
        )
        loss, aux, collection = forward_pass(
            parts.model, inputs["forward_key"], params, inputs["input_batch"], is_training=True
        )
        return ForwardOutputs(loss=loss, aux=aux, output_collection=collection)

    batch = parts.input.dispatch_global_batch(cast(input_batch))
    new_key, noise_key, forward_key, learner_key = jax.random.split(state.prng_key, 4)
    inputs = {"input_batch": batch, "forward_key": forward_key, "param_noise_key": noise_key}
    outputs, collection = functional(
        parts.learner,
        learner_key,
        state.learner,
        {"fn": forward, "inputs": inputs, "opt_params": opt_params(state.model, parts.param_specs)},
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


def is_finite(outputs: dict[str, PyTree]) -> jax.Array:
    """True if a step's loss is finite, and the norm of its gradients if the learner tells it.

    Nothing of the step depends on it: a choice between the new parameters and the old ones would be
    fused with the optimizer's arithmetic, which then rounds otherwise.
    """
    gradient_norm = outputs["summaries"]["learner"].get("gradient_norm", 0.0)
    return jnp.isfinite(outputs["loss"]) & jnp.isfinite(gradient_norm)
