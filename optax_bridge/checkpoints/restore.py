"""What migrated programs call: old checkpoints and new ones, into whatever holds a `TrainState`."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from flax import serialization

import legacy_optim
from optax_bridge.checkpoints.collections import beside, fields_filled
from optax_bridge.checkpoints.devices import outline_on_host, placed_like
from optax_bridge.checkpoints.errors import CheckpointError, Place, shown
from optax_bridge.checkpoints.fill import Filler, Row
from optax_bridge.checkpoints.fitting import (
    BELOW_PARAMS,
    LAYOUT,
    Fit,
    Names,
    dtype_of,
    fields_of,
    is_key,
    is_state,
    leaves,
    legacy_states,
    named_as_pytree,
    optimizers,
    outline_of,
    outlined,
    plain,
    register_states_of,
    restored,
)
from optax_bridge.checkpoints.quiet import quiet
from optax_bridge.checkpoints.read import ORBAX, is_checkpoint, read_checkpoint
from optax_bridge.checkpoints.recognise import Part, is_array, rows
from optax_bridge.exact.boxed import boxes_handled
from optax_bridge.metadata.axis_metadata import has_boxes, key_names, leaves_with_path, unboxed
from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree

T = TypeVar("T")
_TAKE_OUT = "The state has no field of that name: what the program put in, {}, it takes out first."
_OF_THE_OPTIMIZER = {"step", "params", "opt_state"}


def from_state_dict(target: T, state: Any, name: str = ".", *, missing: str = "error") -> T:
    """Restores a state dict, of `flax.optim` or of today, whole or not at all.

    As `flax.serialization.from_state_dict`, but where the target has a `TrainState` and the state
    dict a legacy optimizer, parameters, moments and step of that one are taken over; and nothing
    is left out without a word.

        >>> old = legacy_optim.Adam(0.1).create({"kernel": jnp.ones(3)})
        >>> saved = serialization.to_state_dict(old.apply_gradient(old.target))
        >>> new = optax_bridge.TrainState.create(None, old.target, optax_bridge.adam(0.1))
        >>> int(from_state_dict(new, saved).step)
        1

    Args:
      target: a `TrainState`, or any tree that holds some.
      state: what `flax.serialization.to_state_dict` or `msgpack_restore` gave.
      name: how errors call it.
      missing: "error", or "keep": what the state dict lacks stays as the target has it.

    Returns:
      A tree like the target; its next step is the one that the saved one would have taken.

    Raises:
      CheckpointError: a leaf of the target is missing, or one is of another shape or optimizer.
    """
    place = "state dict" if name == "." else name
    return _restored(target, state, place, missing, by_hand=True)


def from_bytes(target: T, encoded_bytes: bytes, *, missing: str = "error") -> T:
    """Restores msgpack, of `flax.optim` or of today: `flax.serialization.from_bytes`.

    Args:
      target: see `from_state_dict`.
      encoded_bytes: what `flax.serialization.to_bytes` gave.
      missing: see `from_state_dict`.

    Returns:
      See `from_state_dict`.

    Raises:
      CheckpointError: see `from_state_dict`.
    """
    return _restored(target, serialization.msgpack_restore(encoded_bytes), "bytes", missing)


def restore_checkpoint(
    ckpt_dir: str | os.PathLike[str],
    target: T,
    step: int | float | None = None,
    prefix: str = "checkpoint_",
    parallel: bool = True,
    gda_manager: Any = None,
    allow_partial_mpa_restoration: bool = False,
    orbax_checkpointer: Any = None,
    orbax_transforms: Any = None,
    *,
    missing: str = "error",
) -> T:
    """Restores the latest checkpoint of a folder, of `flax.optim` or of today, or a given one.

    As `flax.training.checkpoints.restore_checkpoint`, and see `from_state_dict`. Msgpack files and
    Orbax folders are read, those of T5X and `.npz` files as well; the files stay as they are.
    Orbax and absl log nothing unless `absl.logging.set_verbosity(absl.logging.INFO)` was called.

    Args:
      ckpt_dir: the folder, or the checkpoint itself.
      target: see `from_state_dict`; None: the state dict is returned, in
        NumPy's arrays as then; a typed key is one of numbers.
      step: which one; None: the latest.
      prefix: how the checkpoints' names begin.
      parallel: as of Flax.
      gda_manager: as of Flax, for arrays of several processes; Flax restores these checkpoints.
      allow_partial_mpa_restoration: as of Flax.
      orbax_checkpointer: as of Flax.
      orbax_transforms: as of Flax; with any, Flax restores.
      missing: see `from_state_dict`.

    Returns:
      See `from_state_dict`; the target itself where there is no checkpoint and no step was given.

    Raises:
      CheckpointError: see `from_state_dict`.
      ValueError: there is no checkpoint of this step.
    """
    with quiet():
        from flax.training import checkpoints  # Orbax, slow to import

    def by_flax(path: Any, into: PyTree, at: Any = None) -> PyTree:
        return checkpoints.restore_checkpoint(
            path, into, at, prefix, parallel, gda_manager, allow_partial_mpa_restoration,
            orbax_checkpointer, orbax_transforms,
        )  # fmt: skip

    if not isinstance(ckpt_dir, str | os.PathLike):
        raise TypeError(f"ckpt_dir: expected a path, found {type(ckpt_dir).__name__} {ckpt_dir!r}")
    if isinstance(target, str):
        raise TypeError(
            f"target: expected what to restore into, a state say, found text {target!r}"
        )
    if "://" not in os.fspath(ckpt_dir):
        ckpt_dir = os.path.abspath(ckpt_dir)
    with quiet():
        if gda_manager is not None or orbax_transforms is not None:
            return by_flax(ckpt_dir, target, step)
        if hasattr(orbax_checkpointer, "wait_until_finished"):
            orbax_checkpointer.wait_until_finished()  # else what it is writing is not there yet
        path = path_restored(ckpt_dir, step, prefix, checkpoints.latest_checkpoint)
        if path is None:
            return target
        if "://" in path:  # in a bucket, where Flax reads
            return _restored(target, by_flax(path, None), path, missing)
        read = read_checkpoint(path, _size_of(target))
        if target is None:
            return as_arrays(read.tree)
        try:
            fit, fitted = _fitted(target, read.tree, path, missing)
        except CheckpointError:
            if read.format == ORBAX and named_as_pytree(target, read.tree):
                return placed_like(target, by_flax(path, outline_on_host(target)))
            raise
        if read.format != ORBAX:
            return restored(target, as_arrays(fitted))
        # Orbax brings arrays to the devices where the target has them; it refuses NumPy's scalars.
        scalars = any(isinstance(leaf, np.generic) for leaf in jax.tree.leaves(target))
        if fit.is_exact and not scalars:
            return placed_like(target, by_flax(path, outline_on_host(target)))
        return placed_like(target, restored(target, as_arrays(fitted)))


def _size_of(target: PyTree) -> int:
    """The bytes of a template's arrays, which may be shapes."""
    leaves_of_it = (leaf for leaf in jax.tree.leaves(target) if is_array(leaf) and not is_key(leaf))
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves_of_it)


def path_restored(
    folder: str | os.PathLike[str],
    step: Any,
    prefix: str,
    latest_checkpoint: Callable[[str, str], str | None],
) -> str | None:
    """The checkpoint that Flax would read, whose `latest_checkpoint` is given; None if none is."""
    folder = os.fspath(folder)
    if step is not None:
        path = os.path.join(folder, f"{prefix}{step}")
        if "://" not in path and not os.path.exists(path):
            raise ValueError(f"Matching checkpoint not found: {path}")
        return path
    if "://" in folder:
        return latest_checkpoint(folder, prefix) or folder
    if not os.path.isdir(folder):
        return folder if os.path.exists(folder) else None
    # What was saved into a folder that is a converted checkpoint itself is newer than that.
    latest = latest_checkpoint(folder, prefix)
    return folder if latest is None and is_checkpoint(Path(folder)) else latest


def as_arrays(tree: PyTree) -> PyTree:
    """A state dict whose arrays are in memory: those read when asked for, or mapped from a file."""
    return jax.tree.map(
        lambda leaf: np.array(leaf) if is_array(leaf) and not isinstance(leaf, jax.Array) else leaf,
        tree,
    )


def restored_like(target: T, saved: PyTree, place: Place) -> T:
    """What `restore_checkpoint` gives for a tree that was read; its arrays may be read later.

    Raises:
      CheckpointError: as `restore_checkpoint`, or the target holds no `TrainState`.
    """
    if not register_states_of(target):
        raise CheckpointError(
            place, "a template that holds a TrainState", type(target).__name__,
            "Give a function that makes what the program saves: a TrainState, or a dict, tuple or "
            "dataclass of JAX (flax.struct) with some in it.",
        )  # fmt: skip
    return _restored(target, saved, place, "error")


def _restored(target: T, saved: PyTree, place: Place, missing: str, *, by_hand: bool = False) -> T:
    _, fitted = _fitted(target, saved, place, missing, by_hand=by_hand)
    return restored(target, fitted)


def _fitted(
    target: Params, saved: PyTree, place: Place, missing: str, *, by_hand: bool = False
) -> tuple["LegacyFit", Any]:
    if missing not in ("error", "keep"):
        raise ValueError(f'missing: expected "error" or "keep", found {missing!r}')
    register_states_of(target)  # Flax's own as well
    outline, saved = outlined(target), plain(saved)
    fit = LegacyFit(place, outline, saved, keep=missing == "keep", by_hand=by_hand)
    fitted = fit.tree(outline, saved, (), own=False)
    fit.settle()
    return fit, fitted


class LegacyFit(Fit):
    """A fit that takes legacy optimizers over, and copies for devices off and on.

    Attributes:
      saved_copies: the size of the checkpoint's leading axis, if it was saved replicated.
      copies: the size of the target's leading axis, if it is replicated.
      by_hand: whether the program has the dict in hand: what it put in beside an optimizer's own
        parts, as T5X does with other collections, is then listed and no error, as in flax.optim.
    """

    def __init__(
        self, place: Place, outline: Any, saved: PyTree, *, keep: bool, by_hand: bool = False
    ):
        super().__init__(place, keep=keep)
        self.by_hand = by_hand
        self.saved_copies, self.copies = _copies(outline, saved) or (None, None)

    def state(self, template: Any, saved: PyTree, path: Names) -> PyTree:
        """Fits a `TrainState`, from a legacy optimizer where one stands in its place."""
        if legacy_states(saved) is None and not _has_own_state(template, saved):
            return self._within(template, saved, path)
        fitted = self._optimizer(template, saved, path)
        return fitted | self._fields(outline_of(template), {}, path)

    def _optimizer(self, template: Any, saved: PyTree, path: Names) -> dict[str, Any]:
        """Step, parameters and state from a legacy optimizer."""
        is_own = _has_own_state(template, saved)
        states: PyTree = [saved["state"]] if is_own else legacy_states(saved)
        self.changed = True
        for name in saved.keys() - {"target", "state"}:
            self._over(saved[name], (*path, name), own=bool(path))
        for state in states if not is_own else ():
            others = (n for n in state if n not in ("step", "param_states"))
            self.surplus += [(*path, "state", n) for n in others]
        step = self._step(template.step, states, path)
        outline = outlined(template.params)
        params = self.tree(outline, saved["target"], (*path, "target"), own=True)
        self._check_complete(path)
        new_params = restored(template.params, params)
        opt_state = self.opt_state(template, new_params, saved, step, path)
        plain_state = plain(serialization.to_state_dict(opt_state))
        return {"step": step, "params": params, "opt_state": plain_state}

    def _within(self, template: Any, saved: PyTree, path: Names) -> PyTree:
        """Fits a `TrainState` that stands for a whole legacy checkpoint, optimizer and the rest."""
        is_new = isinstance(saved, Mapping) and {"params", "opt_state"} <= set(saved)
        parts = [] if is_new else list(optimizers(saved))
        if len(parts) != 1:
            if is_new and self.by_hand and not path:
                others = saved.keys() - {*fields_of(template), LAYOUT}
                self.remedy = _TAKE_OUT.format(shown(sorted(others))) if others else self.remedy
            return super().state(template, saved, path)
        (at,) = parts
        optimizer = saved
        for name in at:
            optimizer = optimizer[name]
        fitted = self._optimizer(template, optimizer, (*path, *at))
        outline = outline_of(template)
        names = {n for n, value in outline.items() if any(v is not None for _, v in leaves(value))}
        step = int(np.ravel(np.asarray(fitted["step"]))[0])
        target = optimizer["target"]
        found, left = fields_filled(names - _OF_THE_OPTIMIZER, beside(saved, at), target, step)
        keys = outline.get("rngs")
        if len(found.get("rngs", ())) == 1 and isinstance(keys, Mapping) and len(keys) == 1:
            found["rngs"] = dict(zip(keys, found["rngs"].values(), strict=True))
        self.left += [(*path, *names) for names in left]
        return fitted | self._fields(outline, found, path)

    def _fields(
        self, outline: Mapping[str, PyTree], found: Mapping[str, PyTree], path: Names
    ) -> PyTree:
        """The fields besides the optimizer's, as far as they are found."""
        return {
            name: self.tree(value, found[name], (*path, name), own=True)
            if name in found
            else self.lacking(value, (*path, name))
            for name, value in outline.items()
            if name not in _OF_THE_OPTIMIZER
        }

    def _step(self, expected: PyTree, states: Sequence[Mapping[str, Any]], path: Names) -> Any:
        steps = [np.asarray(state["step"]) for state in states]
        at = (*path, "state", "step")
        if steps[0].dtype.kind not in "iu" or any(not np.array_equal(s, steps[0]) for s in steps):
            self.wrong.append((at, "one number of steps", shown([s.tolist() for s in steps])))
            return expected
        step = self.leaf(expected, steps[0].astype(np.int32), at, own=True)
        return step

    def _check_complete(self, path: Names) -> None:
        """Stops where the parameters are others: their states would all be named as well."""
        at = (*path, "target")
        missing, surplus = ([], []) if self.keep else (self.missing, self.surplus)
        found = [*missing, *surplus, *(p for p, *_ in self.wrong)]
        if any(p[: len(at)] == at for p in found):
            below = {(*at, "params", *p[len(at) :]) for p in missing}
            if missing and below == set(surplus):
                self.remedy = BELOW_PARAMS
            raise self.error()

    def opt_state(
        self, template: Any, params: Params, saved: PyTree, step: Any, path: Names
    ) -> OptState:
        """The state of the template's transformation, from a legacy optimizer's.

        Args:
          template: a state whose arrays may be shapes.
          params: the new parameters.
          saved: the state dict of the legacy optimizer.
          step: steps taken.
          path: where it stands.
        """
        if _has_own_state(template, saved):
            return self._own_state(template, params, saved["state"], (*path, "state"))
        states: PyTree = legacy_states(saved)
        raw, old = unboxed(template.params), unboxed(template.opt_state)
        by_path = self._rows(raw, saved, states, old, path)
        filler = Filler(self, step, self.reconciled, iter(self._dtypes(template, params)), path)
        new = filler.filled(old, by_path, (*path, "opt_state"))
        treedef = jax.tree.structure(template.opt_state)
        return treedef.unflatten(jax.tree.leaves(new))

    def _own_state(self, template: Any, params: Params, saved: PyTree, path: Names) -> OptState:
        """The state that a definition of the user's own makes, field by field."""
        new = restored(
            template.opt_state, self.tree(outlined(template.opt_state), saved, path, own=True)
        )
        found = (dtype_of(leaf) for leaf in jax.tree.leaves(new))
        for at, kept, dtype in zip(
            leaves_with_path(new), self._dtypes(template, params), found, strict=True
        ):
            if kept != dtype:
                names = (*path, *key_names(at[0]))
                self.wrong.append((names, f"{kept}, which the new state keeps", str(dtype)))
        return new

    def _rows(
        self, params: Params, saved: PyTree, states: PyTree, opt_state: OptState, path: Names
    ) -> dict[Names, Row]:
        """The rows of the checkpoint by the paths of the template's parameters."""
        flat = leaves_with_path(params)
        numbered = jax.tree.structure(params).unflatten(range(len(flat)))
        index_of = {at: i for at, i in leaves(plain(serialization.to_state_dict(numbered)))}
        at = (*path, "state", "param_states")
        if len(states) > 1 or saved["state"] is not states[0]:
            fields = self._grouped(saved["target"], states, opt_state, path)
        else:
            part = Part(path, saved["target"], states[0]["param_states"], 0)
            fields = {names: row for names, _, row in rows(part, self.place)}
        return {
            key_names(flat[index][0]): Row(index, (*at, *names), fields.get(names))
            for names, index in index_of.items()
        }

    def _grouped(self, target: Params, states: PyTree, opt_state: OptState, path: Names) -> Any:
        """The rows of the layout up to flax 0.3.2: each group has its leaves by sorted paths."""
        inner = getattr(opt_state, "inner", None)
        where = self.named((*path, "state"))
        if inner is None or len(inner) != len(states):
            raise CheckpointError(
                where, "the groups of an optax_bridge.multi_optimizer", f"{len(states)} groups",
                "A list of states, as flax had it up to 0.3.2, does not say which leaves are in "
                "which: convert it by `optax-bridge convert --optimizer`.",
            )  # fmt: skip
        every = sorted(names for names, _ in leaves(target))
        found: dict[Names, Any] = dict.fromkeys(every)
        for number, (group, own) in enumerate(zip(states, inner, strict=True)):
            held = plain(group["param_states"])
            ends = [key_names(at) for at, _ in leaves_with_path(own)]
            names = [n for n in every if any(end[len(end) - len(n) :] == n for end in ends)]
            if not ends and not any(True for _ in leaves(held)):
                continue  # a group that keeps nothing
            if set(held) != {str(i) for i in range(len(names))}:
                raise CheckpointError(
                    f"{where}, group {number}", f"states of {len(names)} leaves", f"{len(held)}",
                    "The group holds other leaves than it did when this was written.",
                )  # fmt: skip
            found |= {n: held[str(i)] for i, n in enumerate(names)}
        return found

    def _dtypes(self, template: Any, params: Params) -> list[Any]:
        """What the transformation keeps for parameters of the checkpoint's dtypes."""
        own = [np.dtype(leaf.dtype) for leaf in jax.tree.leaves(template.opt_state)]
        pairs = zip(jax.tree.leaves(template.params), jax.tree.leaves(params), strict=True)
        if all(dtype_of(old) == dtype_of(new) for old, new in pairs):
            return own
        tx = boxes_handled(template.tx) if has_boxes(template.params) else template.tx
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), dtype_of(x)), params)
        made = [np.dtype(leaf.dtype) for leaf in jax.tree.leaves(jax.eval_shape(tx.init, shapes))]
        return made if len(made) == len(own) else own

    def leaf(self, expected: PyTree, saved: PyTree, path: Names, own: bool) -> Leaf:
        """Fits a leaf, whichever of both have copies for devices."""
        if self.saved_copies != self.copies and hasattr(saved, "shape") and expected is not None:
            new = self.reconciled(saved, expected, path)
            saved = saved if new is None else new
        return super().leaf(expected, saved, path, own)

    def reconciled(self, found: PyTree, expected: PyTree, path: Names) -> Leaf:
        """An array of the checkpoint in the shape of the target's; None if it has another."""
        shape = np.shape(expected)
        found = found if hasattr(found, "shape") else np.asarray(found)
        if found.shape == shape:
            return found
        whole = shape if self.copies is None else shape[1:]
        if self.saved_copies is not None and found.shape == (self.saved_copies, *whole):
            copies = np.asarray(found)
            first = copies[0].tobytes()
            if any(copy.tobytes() != first for copy in copies[1:]):
                self.wrong.append(
                    (path, "the same on every device, as it was replicated", "others")
                )
                return np.broadcast_to(copies[0], shape) if self.copies else copies[0]
            found = copies[0]
        if found.shape != whole or (self.copies is not None and shape[:1] != (self.copies,)):
            return None
        self.changed = True
        return found if self.copies is None else np.broadcast_to(np.asarray(found), shape)


def _has_own_state(template: Any, saved: PyTree) -> bool:
    """Whether a legacy optimizer's state is of the class that the template's has, a user's own.

    What `init_state` of a wrapped definition makes need not be an `OptimizerState`: its state dict
    then has the fields of that class, the step among them.
    """
    state = saved.get("state") if isinstance(saved, Mapping) and "target" in saved else None
    is_plain = isinstance(template.opt_state, legacy_optim.OptimizerState)
    if is_plain or not isinstance(state, Mapping) or "step" not in state:
        return False
    outline = outlined(template.opt_state)
    return isinstance(outline, Mapping) and set(outline) == set(state)


def _copies(expected: PyTree, saved: PyTree) -> tuple[int | None, int | None] | None:
    """The leading axes of the first state's step in checkpoint and template."""
    if is_state(expected):
        states = [saved["state"]] if _has_own_state(expected, saved) else legacy_states(saved)
        step: Any = saved.get("step") if isinstance(saved, Mapping) else None
        step = states[0]["step"] if states else step
        return _leading(step, saved), _leading(expected.step, outlined(expected.params))
    if isinstance(expected, Mapping) and isinstance(saved, Mapping):
        for name, value in expected.items():
            found = _copies(value, saved.get(name))
            if found is not None:
                return found
    return None


def _leading(step: Any, tree: PyTree) -> int | None:
    """The size of the leading axis, if a tree was replicated: all its arrays have the same."""
    copies = step.shape[0] if getattr(step, "ndim", 0) == 1 else None
    arrays = [leaf for _, leaf in leaves(tree) if is_array(leaf)]
    return copies if all(leaf.shape[:1] == (copies,) for leaf in arrays) else None
