"""Evaluation in the course of a training, and the forward pass of both."""

import contextlib
import inspect
import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from optax_bridge.metadata.trees import Leaf, Params, PyTree
from optax_bridge.spmd.config import (
    REQUIRED,
    ConfigOr,
    Required,
    config_class,
    config_for_function,
    maybe_instantiate,
    maybe_set_config,
)
from optax_bridge.spmd.input import Input
from optax_bridge.spmd.layer import BaseModel
from optax_bridge.spmd.metrics import MetricAccumulator, WeightedSummary, is_summary
from optax_bridge.spmd.module import Module, OutputCollection, functional, nowrap
from optax_bridge.spmd.output_writer import BaseOutputWriter
from optax_bridge.spmd.output_writer import JsonlWriter as JsonlWriter
from optax_bridge.spmd.summaries import BaseWriter, SummaryWriter
from optax_bridge.spmd.trees import cast_floats, flatten_items, prune_empty


def forward_pass(
    model: BaseModel,
    prng_key: jax.Array,
    params: Params,
    batch: PyTree,
    *,
    is_training: bool,
    method: str = "forward",
) -> tuple[jax.Array, PyTree, OutputCollection]:
    """Runs a model.

    Args:
      model: the model.
      prng_key: for its random numbers.
      params: its parameters.
      batch: the batch.
      is_training: True in training.
      method: its method.

    Returns:
      Loss, aux, and the outputs that it added to its context.

    Raises:
      ValueError: it takes no `input_batch`, asks for an array that the batch does not have, or
        returns something else than a scalar loss and aux.
    """
    where = f"{model.path()}.{method}"
    signature = inspect.signature(getattr(model, method))
    try:
        signature.bind(input_batch=batch)
    except TypeError:
        raise ValueError(
            f"{where}: expected one argument, input_batch, which is given by its name, found "
            f"{type(model).__name__}.{method}{signature}."
        ) from None
    try:
        outputs, collection = functional(
            model, prng_key, params, {"input_batch": batch}, method=method, is_training=is_training
        )
    except KeyError as error:
        key = error.args[0] if error.args else None
        if not isinstance(batch, Mapping) or key in batch:
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"{where}: there is no {key!r} ({Path(place.filename).name}, line {place.lineno}: "
            f"{place.line}). The batch has {', '.join(map(repr, batch)) or 'no array'}."
        ) from error
    if not isinstance(outputs, tuple) or len(outputs) != 2:
        raise ValueError(
            f"{where}: expected (loss, aux), a scalar and a dict, found {_describe(outputs)}. "
            "Return `loss, {}` if there is nothing but the loss."
        )
    loss, aux = outputs
    dtype = getattr(loss, "dtype", None)
    if jnp.shape(loss) != () or dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(
            f"{where}: expected a scalar loss of a float dtype, found {_describe(loss)}. Take the "
            "mean over the batch, such as jnp.mean(losses)."
        )
    return loss, aux, collection


def _describe(value: PyTree) -> str:
    """Returns dtype and shape of an array, the type of anything else."""
    if isinstance(value, jax.Array):
        return f"{value.dtype}{list(value.shape)}"
    return f"{type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple) else "")


_log = logging.getLogger(__name__)
EvalPolicy = Callable[..., bool]


def every_n_steps_policy(
    n: int = 1, *, min_step: int = 1, max_step: int | None = None
) -> EvalPolicy:
    """Evaluates at multiples of n, and from the last step on.

    Args:
      n: see above.
      min_step: not before this step.
      max_step: the last step, None if it is not known.

    Returns:
      `policy(*, step, train_summaries) -> bool`.

    Raises:
      ValueError: n is below 1, or `max_step` before `min_step`.
    """
    if n < 1:
        raise ValueError(f"every_n_steps_policy: n is {n}, expected 1 or more")
    if max_step is not None and max_step < min_step:
        raise ValueError(f"every_n_steps_policy: max_step {max_step} < min_step {min_step}")

    def policy(*, step: int, train_summaries: Mapping[str, PyTree] | None) -> bool:
        del train_summaries
        if step < min_step:
            return False
        return step % n == 0 or (max_step is not None and step >= max_step)

    return policy


class BaseMetricCalculator(Module):
    """Computes metrics of a model over batches."""

    def __init__(self, cfg: Module.Config, *, parent: Module | None, model: BaseModel):
        """Keeps the model, which is the trainer's.

        Args:
          cfg: the config.
          parent: the evaler.
          model: the model.
        """
        super().__init__(cfg, parent=parent)
        self._model = model

    @nowrap
    def init_state(self, *, prng_key: jax.Array, model_params: Params) -> PyTree:
        """The state before the first batch."""
        raise NotImplementedError(type(self).__name__)

    @nowrap
    def forward(self, batch: PyTree, *, model_params: Params, state: PyTree) -> dict[str, PyTree]:
        """One batch: {"output": ..., "state": ...}."""
        raise NotImplementedError(type(self).__name__)

    @nowrap
    def get_summaries(self, *, model_params: Params, state: PyTree) -> dict[str, PyTree]:
        """The metrics after the last batch."""
        raise NotImplementedError(type(self).__name__)


class ModelSummaryAccumulator(BaseMetricCalculator):
    """The model's own summaries over all batches, and its loss where it has none named "loss".

    A scalar is averaged over the examples, as the loss is; a `WeightedSummary` by its own weight.
    """

    @config_class
    class Config(BaseMetricCalculator.Config):
        """Configures ModelSummaryAccumulator."""

        metric_accumulator: MetricAccumulator.Config = MetricAccumulator.default_config()
        model_method: str = "forward"

    def __init__(self, cfg: Config, *, parent: Module | None, model: BaseModel):
        super().__init__(cfg, parent=parent, model=model)
        self._jit_forward = jax.jit(self._forward_in_jit)
        self._has_warned = False

    @nowrap
    def init_state(self, *, prng_key: jax.Array, model_params: Params) -> PyTree:
        """The key, and an accumulator without summaries."""
        del model_params
        accumulator = self._config.metric_accumulator.instantiate()
        return {"prng_key": prng_key, "accumulator": accumulator}

    @nowrap
    def forward(self, batch: PyTree, *, model_params: Params, state: PyTree) -> dict[str, PyTree]:
        """One batch."""
        key, outputs, summaries = self._jit_forward(state["prng_key"], model_params, batch)
        state["accumulator"].update(summaries)
        return {"output": outputs, "state": {**state, "prng_key": key}}

    @nowrap
    def get_summaries(self, *, model_params: Params, state: PyTree) -> dict[str, PyTree]:
        """Returns the accumulated summaries; warns, once, of those that cannot be accumulated."""
        del model_params
        summaries = state["accumulator"].summaries() or {}
        items = flatten_items(summaries, is_leaf=lambda x: x is None or is_summary(x))
        left_out = [name for name, summary in items if summary is None]
        if left_out and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s: left out, as the arrays of several batches do not say how they add up: %s. "
                "In the model: add_summary(name, WeightedSummary(mean, number of examples))",
                self.path(),
                ", ".join(left_out),
            )
        return summaries

    def _forward_in_jit(
        self, prng_key: jax.Array, model_params: Params, batch: PyTree
    ) -> tuple[jax.Array, dict[str, PyTree], dict[str, PyTree]]:
        next_key, key = jax.random.split(prng_key)
        parent: PyTree = self.parent
        batch = parent.prepare(batch)
        loss, aux, collection = forward_pass(
            self._model,
            key,
            parent.cast(model_params),
            batch,
            method=self._config.model_method,
            is_training=False,
        )
        summaries = {"loss": loss, **prune_empty(dict(collection.summaries))}
        examples = max((len(x) for x in jax.tree.leaves(batch) if jnp.ndim(x)), default=1)

        def weigh(leaf: Leaf) -> Leaf:
            is_scalar = not is_summary(leaf) and jnp.ndim(leaf) == 0
            return WeightedSummary(leaf, jnp.float32(examples)) if is_scalar else leaf

        summaries = jax.tree.map(weigh, summaries, is_leaf=is_summary)
        return next_key, {"loss": loss, "aux": aux}, summaries


class SpmdEvaler(Module):
    """Evaluates a model on its own input.

    Attributes:
      latest: step and metrics of the last evaluation, None if there was none.
    """

    @config_class
    class Config(Module.Config):
        """Configures SpmdEvaler."""

        input: Required[Input.Config] = REQUIRED
        summary_writer: BaseWriter.Config = SummaryWriter.default_config()
        eval_policy: ConfigOr[EvalPolicy] = config_for_function(every_n_steps_policy)
        metric_calculator: BaseMetricCalculator.Config = ModelSummaryAccumulator.default_config()
        eval_dtype: DTypeLike | None = None
        output_writer: BaseOutputWriter.Config | None = None
        trace_at_iters: Sequence[int] = []

    def __init__(self, cfg: Config, *, parent: Module | None, model: BaseModel):
        """Makes input, writer and calculator.

        Args:
          cfg: the config.
          parent: the trainer.
          model: the model.
        """
        super().__init__(cfg, parent=parent)
        self._add_child("input", maybe_set_config(cfg.input.clone(), is_training=False))
        self._add_child("summary_writer", cfg.summary_writer)
        self._add_child("metric_calculator", cfg.metric_calculator, model=model)
        self._output_writer: BaseOutputWriter | None = None
        if cfg.output_writer is not None:
            self._output_writer = self._add_child("output_writer", cfg.output_writer)
        self._jit_prepare = jax.jit(self.prepare)
        self._eval_policy = maybe_instantiate(cfg.eval_policy)
        self.latest: tuple[int, dict[str, PyTree]] | None = None

    @nowrap
    def cast(self, tree: PyTree) -> PyTree:
        """Floats in `eval_dtype`."""
        dtype = self._config.eval_dtype
        return tree if dtype is None else cast_floats(tree, to_dtype=dtype)

    @nowrap
    def prepare(self, batch: PyTree) -> PyTree:
        """A global batch as the model gets it; within `jax.jit`."""
        return self.input.dispatch_global_batch(self.cast(batch))

    @nowrap
    def eval_step(
        self,
        step: int,
        *,
        prng_key: jax.Array,
        model_params: Params,
        return_aux: bool = False,
        train_summaries: Mapping[str, PyTree] | None = None,
        force_run: bool = False,
    ) -> tuple[jax.Array, dict[str, PyTree] | None, list[PyTree] | None]:
        """Evaluates if the policy asks for it.

        Args:
          step: of the training.
          prng_key: of the evaluation.
          model_params: the parameters.
          return_aux: True to return the outputs of each batch.
          train_summaries: for the policy.
          force_run: evaluates without asking the policy.

        Returns:
          The key, unchanged; the metrics, None if nothing was evaluated; the outputs or None.
        """
        if not self._eval_policy(step=step, train_summaries=train_summaries) and not force_run:
            return prng_key, None, None
        start = time.perf_counter()
        try:
            summaries, outputs = self._evaluate(step, prng_key, model_params, return_aux)
        except Exception as error:
            error.add_note(f"In the evaluation {self.path()} at step {step}.")
            raise
        seconds = time.perf_counter() - start
        self.summary_writer(step, {**summaries, "eval_time_secs": seconds})
        self.latest = step, summaries
        return prng_key, summaries, outputs if return_aux else None

    def _evaluate(
        self, step: int, prng_key: jax.Array, model_params: Params, return_aux: bool
    ) -> tuple[dict[str, PyTree], list[PyTree]]:
        """Returns the metrics of all batches, and the outputs if they are wanted."""
        calculator, writer = self.metric_calculator, self._output_writer
        cfg, folder = self._config, self.summary_writer.config.dir
        state = calculator.init_state(prng_key=prng_key, model_params=model_params)
        outputs: list[PyTree] = []
        if writer is not None:
            writer.begin(step)
        for number, host_batch in enumerate(self.input.batches(self.input.dataset())):
            batch = self.input.global_batch(host_batch, pad=True)
            is_traced = number in cfg.trace_at_iters and jax.process_index() == 0
            with _profile(folder) if is_traced else contextlib.nullcontext():
                result = calculator.forward(batch, model_params=model_params, state=state)
                if is_traced:
                    jax.block_until_ready(result["output"])
            state = result["state"]
            if return_aux:
                outputs.append(result["output"])
            if writer is not None:
                writer.write(input_batch=self._jit_prepare(batch), output_batch=result["output"])
        if writer is not None:
            writer.end()
        return calculator.get_summaries(model_params=model_params, state=state), outputs


@contextlib.contextmanager
def _profile(folder: str) -> Iterator[None]:
    """A scope of which a profile is written, unless another one is being taken."""
    try:
        jax.profiler.start_trace(folder)
    except RuntimeError as error:  # one at a time: the trainer's runs
        _log.warning("no profile of the evaluation in %s: %s", folder, error)
        yield
        return
    try:
        yield
    finally:
        jax.profiler.stop_trace()
