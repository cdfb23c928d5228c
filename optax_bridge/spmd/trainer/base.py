"""The parts of a trainer, its state, and the steps that it takes."""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from optax_bridge.metadata.trees import Leaf, Params, PyTree
from optax_bridge.spmd.checkpointer import BaseCheckpointer, Checkpointer, MissingPositionError
from optax_bridge.spmd.checkpointer.handlers import SavableIterator, is_iterator
from optax_bridge.spmd.config import (
    REQUIRED,
    ConfigOr,
    Required,
    config_class,
    maybe_instantiate,
    maybe_set_config,
)
from optax_bridge.spmd.evaler import SpmdEvaler
from optax_bridge.spmd.input import Input
from optax_bridge.spmd.layer import BaseModel
from optax_bridge.spmd.learner import BaseLearner
from optax_bridge.spmd.mesh import (
    Devices,
    HybridMeshShape,
    axis_entry,
    check_axes,
    mesh_of,
)
from optax_bridge.spmd.module import Module, nowrap
from optax_bridge.spmd.summaries import BaseWriter, SummaryWriter
from optax_bridge.spmd.trainer.state import (
    SpmdTrainState,
    TrainerState,
    is_finite,
    learner_transformation,
    raw_key,
    state_specs,
    train_step,
    with_scalars,
)
from optax_bridge.spmd.trees import flatten_items

_log = logging.getLogger(__name__)
Scope = contextlib.AbstractContextManager[object]


class BaseTrainer(Module):
    """Model, learner, input, evalers, checkpointer and writer under one root, and their state."""

    # Children, see `Module`.
    input: Input
    model: BaseModel
    learner: BaseLearner
    checkpointer: BaseCheckpointer
    summary_writer: BaseWriter

    @config_class
    class Config(Module.Config):
        """Configures a trainer."""

        input: Required[Input.Config] = REQUIRED
        dir: Required[str] = REQUIRED
        model: Required[BaseModel.Config] = REQUIRED
        learner: Required[BaseLearner.Config] = REQUIRED
        mesh_shape: Required[Sequence[int] | HybridMeshShape] = REQUIRED
        mesh_axis_names: Required[Sequence[str]] = REQUIRED
        batch_axis_names: str | Sequence[str] = "data"
        mesh_rules: Sequence[tuple[str, object]] | None = None
        max_step: int | float = math.inf
        summary_writer: BaseWriter.Config = SummaryWriter.default_config()
        checkpointer: BaseCheckpointer.Config = Checkpointer.default_config()
        evalers: dict[str, SpmdEvaler.Config] = {}  # noqa: RUF012
        init_state_builder: ConfigOr[Callable[..., tuple[int, TrainerState]]] | None = None
        save_input_iterator: bool = False
        train_dtype: DTypeLike | None = None
        start_trace_steps: Sequence[int] = []
        n_steps_for_each_trace: int | None = None
        start_trace_process_indices: Sequence[int] | str = [0]
        watchdog_timeout_seconds: float | None = None
        crash_on_hang_timeout_seconds: float | None = None
        context_manager: ConfigOr[Callable[[], Scope]] | None = None
        log_every_n_steps: int | None = None
        prune_empty_state_updates: bool = True

    def __init__(self, cfg: Config, *, parent: Module | None, devices: Devices | None = None):
        """Makes mesh and children; no arrays yet.

        Args:
          cfg: the config.
          parent: usually None.
          devices: all devices unless given.

        Raises:
          ValueError: a field of the config does not fit; the message names it.
          TypeError: a part of it is no config.
        """
        super().__init__(cfg, parent=parent)
        cfg = self.config  # a copy, as fields are set below
        if not isinstance(cfg.evalers, dict):
            raise TypeError(
                f"{self.path()}: evalers: expected a dict of configs, found {cfg.evalers!r}"
            )
        parts = {name: getattr(cfg, name) for name in ("model", "learner")}
        for name, part in (parts | cfg.evalers).items():
            self._check_child_config(name, part)
        if cfg.model.dtype is None:
            raise ValueError(
                f"{self.path()}: dtype must be explicitly specified for the model: set "
                "model.dtype, e.g. jnp.float32"
            )
        if not cfg.prune_empty_state_updates:
            raise ValueError(f"{self.path()}: prune_empty_state_updates=False is not supported")
        if not isinstance(cfg.max_step, int | float) or math.isnan(cfg.max_step):
            raise ValueError(f"{self.path()}: max_step is {cfg.max_step!r}, expected a number")
        _check_folder(self.path(), cfg.dir)
        self._mesh = mesh_of(cfg, devices)
        self._step: int | None = None
        self._state: SpmdTrainState | None = None
        self._compiled_train_step: jax.stages.Wrapped | None = None
        batch_axes = PartitionSpec(axis_entry(cfg.batch_axis_names))
        with self.mesh_scope():
            self._add_child(
                "input", maybe_set_config(cfg.input, partition_spec=batch_axes, is_training=True)
            )
            summaries = Path(cfg.dir) / "summaries"
            self._add_child(
                "summary_writer",
                maybe_set_config(cfg.summary_writer, dir=str(summaries / "train_train")),
            )
            self._add_child("model", cfg.model)
            if cfg.learner.norm_summaries is None:
                cfg.learner.norm_summaries = True
            self._add_child("learner", cfg.learner)
            self._add_child(
                "checkpointer",
                maybe_set_config(cfg.checkpointer, dir=str(Path(cfg.dir) / "checkpoints")),
            )
            self._model_param_specs = self.model.create_parameter_specs_recursively()
            check_axes(self.path(), self._model_param_specs, self._mesh)
            self._tx = learner_transformation(self.learner, self._model_param_specs)
            self._evalers = {}
            for name, evaler in cfg.evalers.items():
                maybe_set_config(evaler.summary_writer, dir=str(summaries / name))
                if evaler.output_writer is not None:
                    outputs = Path(cfg.dir) / "outputs" / name
                    maybe_set_config(evaler.output_writer, dir=str(outputs))
                maybe_set_config(evaler.input, partition_spec=batch_axes)
                self._evalers[name] = self._add_child(name, evaler, model=self.model)

    # Parts and state.

    @property
    def step(self) -> int | None:
        """Steps taken; None before there is a state."""
        return self._step

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return self._mesh

    @property
    def train_state(self) -> SpmdTrainState | None:
        """The state as a `TrainState`; None before there is one."""
        return self._state

    @property
    def trainer_state(self) -> TrainerState | None:
        """The state in the form it is saved in; None before it exists."""
        return None if self._state is None else self._state.trainer_state

    @property
    def evalers(self) -> dict[str, SpmdEvaler]:
        """The evalers by name."""
        return dict(self._evalers)

    @property
    def trainer_state_specs(self) -> TrainerState:
        """`TensorSpec`s of the state: dtypes as they will be, axes as the learner says."""
        return state_specs(self._tx, self.learner, self._model_param_specs)

    @property
    def trainer_state_partition_specs(self) -> TrainerState:
        """The shardings of the state."""
        with self.mesh_scope():
            return jax.tree.map(lambda spec: spec.sharding, self.trainer_state_specs)

    @nowrap
    def mesh_scope(self) -> contextlib.AbstractContextManager[object]:
        """A scope in which the mesh is set, within the config's `context_manager`."""
        stack = contextlib.ExitStack()
        stack.enter_context(jax.set_mesh(self._mesh))
        manager: Any = maybe_instantiate(self._config.context_manager)
        if manager is not None:
            stack.enter_context(manager if hasattr(manager, "__enter__") else manager())
        return stack

    @nowrap
    def model_params_for_eval(self) -> Params:
        """The average of the parameters if the learner keeps one, else the parameters."""
        state: PyTree = self._existing_state()
        if self._config.learner.ema.decay is not None:
            return state.opt_state["ema"].ema
        return state.params

    # The first state.

    @nowrap
    def init(self, prng_key: jax.Array) -> None:
        """Makes the state of step 0, each array directly on its devices.

        Args:
          prng_key: a key of `jax.random.PRNGKey`.
        """
        with self.mesh_scope():
            prng_key, init_key = jax.random.split(raw_key(prng_key))
            specs = dict(flatten_items(self._model_param_specs))

            def rule(path: str, leaf: Leaf) -> PartitionSpec:
                del leaf
                axes = specs[path.removeprefix("/")].mesh_axes
                return axes if isinstance(axes, PartitionSpec) else PartitionSpec(*(axes or ()))

            self._state = SpmdTrainState.create_sharded(
                mesh=self._mesh,
                rules=rule,
                init=lambda: self.model.initialize_parameters_recursively(init_key),
                apply_fn=None,
                tx=self._tx,
                prng_key=prng_key,
            )
            self._step = 0
            if any(spec.memory_kind for spec in jax.tree.leaves(self.trainer_state_specs)):
                state = self._state.trainer_state
                self.set_state(0, jax.device_put(state, self.trainer_state_partition_specs))

    @nowrap
    def set_state(self, step: int, state: TrainerState) -> None:
        """Takes a state over.

        Args:
          step: steps that it has taken.
          state: its arrays, placed on the mesh.
        """
        replicated = NamedSharding(self._mesh, PartitionSpec())
        self._state = self._assemble(
            state,
            jax.device_put(jnp.asarray(step, jnp.int32), replicated),
        )
        self._step = step

    @nowrap
    def restore_checkpoint(self, restore_step: int | None = None) -> int | None:
        """Restores the newest checkpoint, or that of a given step.

        Args:
          restore_step: the step, None for the newest.

        Returns:
          The step; None if there is no checkpoint.

        Raises:
          ValueError: no checkpoint has that step, it is of another model or learner, or the input
            cannot continue from its position.
          DamagedCheckpointError: it changed after it was written.
        """
        with self.mesh_scope():
            with_input = self._config.save_input_iterator
            try:
                step, state = self._restore(restore_step, with_input=with_input)
            except MissingPositionError as error:
                step, state = self._restore(restore_step, with_input=False)
                _log.warning("%s: the input starts over", error)
            if step is None:
                return None
            state.pop("input_iter", None)
            self.set_state(step, TrainerState(**state))
            return step

    def _restore(
        self, step: int | None, *, with_input: bool
    ) -> tuple[int | None, dict[str, PyTree]]:
        target: dict[str, PyTree] = self.trainer_state_specs._asdict()
        if with_input:
            target["input_iter"] = self.savable_iterator()
        return self.checkpointer.restore(step=step, state=target)

    @nowrap
    def input_iterator(self) -> Iterator[PyTree]:
        """The iterator of the training's input; the same one throughout a run."""
        if not hasattr(self, "_input_iter"):
            self._input_iter = iter(self.input.dataset())
        return self._input_iter

    @nowrap
    def savable_iterator(self) -> SavableIterator:
        """Returns `input_iterator()`, whose position can be saved.

        Raises:
          ValueError: it cannot.
        """
        iterator = self.input_iterator()
        if not is_iterator(iterator):
            raise ValueError(
                f"{self.path()}: save_input_iterator, but the input's iterator "
                f"{type(iterator).__name__} has no get_state and set_state. Give it both, or set "
                "save_input_iterator=False: a resumed run then starts the input over."
            )
        return iterator

    @nowrap
    def saved_state(self) -> dict[str, PyTree]:
        """Returns the content of a checkpoint of the present state."""
        state: dict[str, PyTree] = self._existing_state().trainer_state._asdict()
        if self._config.save_input_iterator:
            state["input_iter"] = self.savable_iterator()
        return state

    # Steps.

    @nowrap
    def compile_train_step(
        self,
        *,
        trainer_state: TrainerState | None = None,
        input_batch: PyTree = None,
        compiler_options: dict[str, str | bool] | None = None,
    ) -> jax.stages.Compiled:
        """Compiles the step ahead of time, from specs alone unless arrays are given.

        Args:
          trainer_state: a `TrainerState` of arrays or `TensorSpec`s.
          input_batch: a global batch of arrays or `TensorSpec`s.
          compiler_options: of `jax.stages.Lowered.compile`.

        Returns:
          The `jax.stages.Compiled` of `(SpmdTrainState, batch) -> (SpmdTrainState, outputs)`.
        """
        with self.mesh_scope():
            state = self.trainer_state_specs if trainer_state is None else trainer_state
            batch = self.input.element_spec() if input_batch is None else input_batch
            replicated = NamedSharding(self._mesh, PartitionSpec())
            state, batch = jax.tree.map(_abstract, (state, batch))
            target = self._assemble(
                state,
                jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated),
            )
            lowered = self._jit_train_step().lower(target, batch)
            return lowered.compile(compiler_options=compiler_options)

    @nowrap
    def take_step(self, host_batch: PyTree) -> dict[str, PyTree]:
        """Begins the next step with this process's part of a batch.

        Args:
          host_batch: a tree of host arrays.

        Returns:
          The step's outputs: "loss", "aux", "summaries", "finite", and "scalars" for
          `read_scalars`; they may not be computed yet.
        """
        return self._run_step(self.input.step_batch(host_batch))

    def _run_step(self, input_batch: PyTree) -> dict[str, PyTree]:
        """Begins the next step with a global batch."""
        self._state, outputs = self._jit_train_step()(self._existing_state(), input_batch)
        self._step = (self._step or 0) + 1
        if jax.default_backend() != "cpu":  # on its way before the next step begins
            outputs["scalars"].copy_to_host_async()
        return outputs

    def _train_step(
        self, state: TrainerState, input_batch: PyTree
    ) -> tuple[TrainerState, dict[str, PyTree]]:
        """One step as a pure function; its loss decides nothing here."""
        return train_step(
            state,
            input_batch,
            model=self.model,
            param_specs=self._model_param_specs,
            learner=self.learner,
            input=self.input,
            train_dtype=self._config.train_dtype,
        )

    def _jit_train_step(self) -> jax.stages.Wrapped:
        if self._compiled_train_step is None:
            replicated = NamedSharding(self._mesh, PartitionSpec())
            shardings = self._assemble(self.trainer_state_partition_specs, replicated)
            self._compiled_train_step = jax.jit(
                self._step_of_train_state, donate_argnums=0, out_shardings=(shardings, None)
            )
        return self._compiled_train_step

    def _step_of_train_state(
        self, state: SpmdTrainState, batch: PyTree
    ) -> tuple[SpmdTrainState, dict[str, PyTree]]:
        new, outputs = self._train_step(state.trainer_state, batch)
        state = state.with_trainer_state(new).replace(step=state.step + 1)
        return state, with_scalars({**outputs, "finite": is_finite(outputs)})

    def _assemble(self, state: TrainerState, step: Leaf) -> SpmdTrainState:
        """A `TrainState` of arrays, of shapes or of shardings."""
        return SpmdTrainState(
            step=step,
            apply_fn=None,  # type: ignore[arg-type]
            params=state.model,
            tx=self._tx,
            opt_state=state.learner,
            prng_key=state.prng_key,
        )

    @nowrap
    def begin(self, prng_key: jax.Array) -> None:
        """Makes the first state, by the config's builder if it has one."""
        builder = maybe_instantiate(self._config.init_state_builder)
        if builder is not None:
            self.set_state(*builder(self, prng_key=prng_key))
        else:
            self.init(prng_key)

    def _existing_state(self) -> SpmdTrainState:
        if self._state is None:
            raise ValueError(f"{self.path()}: no state yet: call init, restore_checkpoint or run")
        return self._state


def _abstract(leaf: Leaf) -> jax.ShapeDtypeStruct:
    """Shape, dtype and sharding of an array or of a `TensorSpec`."""
    return jax.ShapeDtypeStruct(tuple(leaf.shape), leaf.dtype, sharding=leaf.sharding)


def _check_folder(where: str, folder: str) -> None:
    """Raises ValueError if a run's folder is a file, or would lie below one."""
    path = Path(folder)
    for parent in (path, *path.parents):
        if parent.exists() and not parent.is_dir():
            raise ValueError(
                f"{where}: dir={folder!r}: {parent} is a file, expected a folder for the files of "
                "the run. Take another one."
            )
