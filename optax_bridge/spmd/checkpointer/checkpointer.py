"""Checkpoints of a training, by Orbax: asynchronous, whole or not there at all."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Self

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from optax_bridge.checkpoints.formats.trainer import INDEX, STEP_NAME
from optax_bridge.metadata.trees import Leaf, PyTree
from optax_bridge.spmd.checkpointer.checksums import damage_of
from optax_bridge.spmd.checkpointer.handlers import (
    ITEM as CHECKSUMS,
)
from optax_bridge.spmd.checkpointer.handlers import (
    ChecksumHandler,
    DamagedCheckpointError,
    IteratorHandler,
    MissingPositionError,
    RestoreIterators,
    SaveChecksums,
    SaveIterators,
    damage_message,
    iterators_of,
)
from optax_bridge.spmd.checkpointer.policies import (
    EvalerSummaries,
    KeepLastAndEvery,
    every_n_steps_policy,
    move_out_of_the_way,
    set_aside,
    settle,
)
from optax_bridge.spmd.checkpointer.structure import (
    CheckpointValidationType,
    Index,
    as_nested,
    check_state_structure,
    from_nested,
    index_of,
    specs_from,
)
from optax_bridge.spmd.config import (
    REQUIRED,
    ConfigOr,
    Required,
    config_class,
    config_for_function,
    maybe_instantiate,
)
from optax_bridge.spmd.module import Module, nowrap
from optax_bridge.spmd.trees import current_mesh

_log = logging.getLogger(__name__)
_MAX_STEP = 10**8
_NO_MESH = Mesh(np.empty((), object), ())


class BaseCheckpointer(Module):
    """Saves states by a policy; a context manager, within which saves may be under way."""

    @config_class
    class Config(Module.Config):
        """Configures BaseCheckpointer."""

        dir: Required[str] = REQUIRED
        save_policy: ConfigOr[Callable[..., bool]] = config_for_function(every_n_steps_policy)

    @classmethod
    def checkpoint_paths(cls, base_dir: str) -> list[str]:
        """The folders of complete checkpoints, by rising step."""
        return [str(f) for f in _step_folders(base_dir) if (f / "index").exists()]

    @classmethod
    def checkpoint_steps(cls, base_dir: str) -> list[int]:
        """The steps of complete checkpoints, rising."""
        return [parse_step(path) for path in cls.checkpoint_paths(base_dir)]

    @classmethod
    def latest_checkpoint_path(cls, base_dir: str) -> str:
        """The folder of the newest complete checkpoint.

        Raises:
          IndexError: there is no checkpoint.
        """
        return cls.checkpoint_paths(base_dir)[-1]

    @classmethod
    def latest_checkpoint_step(cls, base_dir: str) -> int:
        """The step of the newest complete checkpoint.

        Raises:
          IndexError: there is no checkpoint.
        """
        return cls.checkpoint_steps(base_dir)[-1]

    def __init__(self, cfg: Config, *, parent: Module | None):
        super().__init__(cfg, parent=parent)
        self._within_context = False
        self._save_policy = maybe_instantiate(cfg.save_policy)

    def __enter__(self) -> Self:
        if self._within_context:
            raise ValueError(f"{self.path()}: Already in a context: a checkpointer has one at once")
        self._within_context = True
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        self.stop(has_exception=exc_type is not None)
        self._within_context = False

    @nowrap
    def save(
        self, *, step: int, state: PyTree, evaler_summaries: EvalerSummaries | None = None
    ) -> None:
        """Starts to save a state if the policy asks for it; replaces one of the same step.

        Args:
          step: the step.
          state: a tree of arrays and iterators; it may be donated when this returns.
          evaler_summaries: for the policy.

        Raises:
          ValueError: the step is not in [0, 1e8).
        """
        if self.should_save(step=step, evaler_summaries=evaler_summaries):
            self.save_now(step=step, state=state)

    @nowrap
    def should_save(self, *, step: int, evaler_summaries: EvalerSummaries | None = None) -> bool:
        """True if the policy asks for a save; call it once per step.

        Raises:
          ValueError: the step is not in [0, 1e8).
        """
        _check_step(step)
        return self._save_policy(step=step, evaler_summaries=evaler_summaries or {})

    @nowrap
    def save_now(self, *, step: int, state: PyTree) -> None:
        """Begins to save a state, without asking the policy."""
        raise NotImplementedError(type(self).__name__)

    @nowrap
    def restore(self, *, step: int | None = None, state: PyTree) -> tuple[int | None, PyTree]:
        """Restores the newest state, or that of a given step."""
        raise NotImplementedError(type(self).__name__)

    @nowrap
    def set_aside_after(self, step: int) -> None:
        """Sets checkpoints of later steps aside, so that a run resumes from this one."""
        raise NotImplementedError(type(self).__name__)

    @nowrap
    def wait_until_finished(self) -> None:
        """Waits for saves that are under way."""
        raise NotImplementedError(type(self).__name__)

    @nowrap
    def stop(self, *, has_exception: bool = False) -> None:
        """Waits for saves that are under way, unless there was an exception."""
        if not has_exception:
            self.wait_until_finished()


class Checkpointer(BaseCheckpointer):
    """Checkpoints in folders `step_00000100`, each with a list of its content, `index`.

    A state may have arrays, and iterators with `get_state` and `set_state`. A folder gets its name
    when everything is in it, so that one that is there is complete.
    """

    @config_class
    class Config(BaseCheckpointer.Config):
        """Configures Checkpointer."""

        keep_last_n: int = 1
        keep_every_n_steps: int | None = None
        validation: CheckpointValidationType = CheckpointValidationType.EXACT
        fall_back: bool = False

    def __init__(self, cfg: Config, *, parent: Module | None):
        super().__init__(cfg, parent=parent)
        self._manager: ocp.CheckpointManager | None = None
        self._replaces = False

    @property
    def directory(self) -> str:
        """The folder of the checkpoints."""
        return self._config.dir

    @nowrap
    def save_now(self, *, step: int, state: PyTree) -> None:
        """Begins to save a state, without asking the policy."""
        _check_step(step)
        manager = self._open()
        if step in manager.all_steps():
            self.wait_until_finished()
            set_aside(Path(self.directory) / _name(step))
            manager.reload()
            self._replaces = True
        iterators = iterators_of(state)
        items: dict[str, ocp.args.CheckpointArgs] = {
            "state": ocp.args.PyTreeSave(as_nested(state)),
            "index": ocp.args.JsonSave(index_of(state, step=step)),  # type: ignore[arg-type]
        }
        if iterators:
            items["iterators"] = SaveIterators(iterators)
        items[CHECKSUMS] = SaveChecksums()
        with jax.set_mesh(_NO_MESH):  # Orbax 0.11 slices a shard, which lies on one of its devices
            manager.save(step, args=ocp.args.Composite(**items), force=True)

    @nowrap
    def restore(self, *, step: int | None = None, state: PyTree) -> tuple[int | None, PyTree]:
        """Restores the newest state, or that of a given step.

        Args:
          step: the step, None for the newest.
          state: arrays or `TensorSpec`s, which say where the arrays are to lie, and iterators,
            whose states are set.

        Returns:
          The step and the state; None and the given state if there is no checkpoint.

        Raises:
          ValueError: there is no complete checkpoint of the given step, or it is of another
            structure.
          MissingPositionError: it has no position of an iterator.
          DamagedCheckpointError: it changed after it was written; the message names those that are.
        """
        if self._manager is None:
            settle(Path(self.directory), _is_complete)
        step = self._whole_step(step)
        if step is None:
            return None, state
        manager = self._open()
        folder = Path(self.directory) / _name(step)
        iterators = iterators_of(state)
        index = read_index(folder)
        arrays, wanted = (
            [entry for entry in entries if entry[1] != "iterator"]
            for entries in (index, index_of(state, step=step))
        )
        try:
            check_state_structure(arrays, wanted, validation=self._config.validation)
        except ValueError as error:
            error.add_note(f"The checkpoint is {folder}; nothing in it was changed.")
            raise
        unsaved = iterators.keys() - {path for path, entry in index if entry == "iterator"}
        if unsaved:
            raise MissingPositionError(f"{folder}: no position of {', '.join(sorted(unsaved))}")
        targets = jax.tree.map(_abstract_array, as_nested(state))
        items: dict[str, ocp.args.CheckpointArgs] = {
            "state": ocp.args.PyTreeRestore(
                item=targets,
                restore_args=ocp.checkpoint_utils.construct_restore_args(targets),
                partial_restore=True,
            )
        }
        if iterators:
            items["iterators"] = RestoreIterators(iterators)
        restored = manager.restore(step, args=ocp.args.Composite(**items))
        return step, from_nested(state, restored["state"])

    @nowrap
    def set_aside_after(self, step: int) -> None:
        """Renames the checkpoints of later steps, whole or damaged."""
        for folder in _step_folders(self.directory):
            if parse_step(folder) > step:
                new = move_out_of_the_way(folder)
                _log.warning("%s is set aside, as %s", folder, new.name)
        if self._manager is not None:
            self._manager.reload()

    def _whole_step(self, step: int | None) -> int | None:
        """Returns the step to restore, None without a checkpoint."""
        folders = {parse_step(folder): folder for folder in _step_folders(self.directory)}
        if step is None and not folders:
            return None
        if step is not None and step not in folders:
            raise ValueError(
                f"{self.directory}: no complete checkpoint of step {step}; there are "
                f"{sorted(folders) or 'none'}"
            )
        chosen = max(folders) if step is None else step
        problems = damage_of(folders[chosen])
        if not problems:
            return chosen
        intact = [s for s in sorted(folders) if s != chosen and not damage_of(folders[s])]
        message = damage_message(folders[chosen], problems, whole_steps=intact, parsed_step=chosen)
        if step is not None or not intact or not self._config.fall_back:
            raise DamagedCheckpointError(message)
        _log.warning("%s\nfall_back=True: the run goes on from step %d", message, intact[-1])
        self.set_aside_after(intact[-1])
        return intact[-1]

    @nowrap
    def wait_until_finished(self) -> None:
        """Waits for saves that are under way; raises their errors."""
        if self._manager is not None:
            self._manager.wait_until_finished()
            if self._replaces:
                settle(Path(self.directory), _is_complete)
                self._replaces = False

    @nowrap
    def stop(self, *, has_exception: bool = False) -> None:
        """Waits for saves that are under way, unless there was an exception."""
        super().stop(has_exception=has_exception)
        if self._manager is not None and not has_exception:
            self._manager.close()
            self._manager = None

    def _open(self) -> ocp.CheckpointManager:
        if self._manager is None:
            cfg = self._config
            Path(cfg.dir).mkdir(parents=True, exist_ok=True)
            settle(Path(cfg.dir), _is_complete)
            options = ocp.CheckpointManagerOptions(
                step_name_format=ocp.path.step.standard_name_format(
                    step_prefix="step", step_format_fixed_length=8
                ),
                preservation_policy=KeepLastAndEvery(cfg.keep_last_n, cfg.keep_every_n_steps),
                cleanup_tmp_directories=True,
            )
            self._manager = ocp.CheckpointManager(
                epath.Path(cfg.dir).absolute(),
                options=options,
                item_handlers={
                    "state": ocp.PyTreeCheckpointHandler(),
                    "index": ocp.JsonCheckpointHandler(filename=Path(INDEX).name),
                    "iterators": IteratorHandler(),
                    CHECKSUMS: ChecksumHandler(),  # the last, see there
                },
            )
        return self._manager


def read_index(ckpt_dir: str | Path) -> Index:
    """The index of a complete checkpoint.

    Raises:
      ValueError: there is no complete checkpoint.
    """
    file = Path(ckpt_dir) / INDEX
    if not file.exists():
        raise ValueError(f"{ckpt_dir}: no checkpoint of a trainer: it has no {file}")
    return json.loads(file.read_text())


def read_state_spec(ckpt_dir: str | Path) -> PyTree:
    """Nested `TensorSpec`s of a checkpoint's arrays, from its index alone."""
    return specs_from(read_index(ckpt_dir))


def parse_step(path: str | Path) -> int:
    """The step of a checkpoint's folder.

    Raises:
      ValueError: the folder is not named like one.
    """
    match = STEP_NAME.fullmatch(Path(path).name)
    if match is None:
        raise ValueError(f"{path}: not named like a checkpoint, e.g. step_00000100")
    return int(match.group(1))


def _is_complete(folder: Path) -> bool:
    return (folder / "index").exists() and ocp.utils.is_checkpoint_finalized(epath.Path(folder))


def _step_folders(base_dir: str) -> list[Path]:
    """Returns the folders of checkpoints that were finished, damaged ones too, by rising step."""
    folder = Path(base_dir)
    folders = [f for f in folder.glob("step_*") if STEP_NAME.fullmatch(f.name) and f.is_dir()]
    finished = ocp.utils.is_checkpoint_finalized
    return sorted(f for f in folders if any(f.iterdir()) and finished(epath.Path(f)))


def _name(step: int) -> str:
    return f"step_{step:08d}"


def _check_step(step: int) -> None:
    if not 0 <= step < _MAX_STEP:
        raise ValueError(f"step: expected one within [0, {_MAX_STEP}), found {step}")


def _abstract_array(leaf: Leaf) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    if sharding is not None:
        return jax.ShapeDtypeStruct(tuple(leaf.shape), leaf.dtype, sharding=sharding)
    mesh = current_mesh()
    replicated = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    shape, dtype = jax.numpy.shape(leaf), jax.numpy.result_type(leaf)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=replicated)
