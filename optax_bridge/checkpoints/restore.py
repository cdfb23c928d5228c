"""What migrated programs call: old checkpoints and new ones, into whatever holds a `TrainState`."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from flax import serialization

import legacy_optim
from legacy_optim.older_layout import OLDER_WEIGHT_NORM, has_older_weight_norm
from optax_bridge.checkpoints.collections import beside, fields_filled
from optax_bridge.checkpoints.devices import outline_on_host, placed_like
from optax_bridge.checkpoints.errors import CheckpointError, Place, shown
from optax_bridge.checkpoints.fit import (
    BELOW_PARAMS,
    LAYOUT,
    LEVEL,
    OWNERS,
    Fit,
    Names,
    Owner,
    check_finite,
    fields_of,
    has_states,
    is_key,
    is_state,
    kind,
    leaves,
    legacy_states,
    named_as_pytree,
    optimizers,
    outline_of,
    outlined,
    plain,
    restored,
)
from optax_bridge.checkpoints.quiet import quiet
from optax_bridge.checkpoints.read import ORBAX, is_checkpoint, read_checkpoint
from optax_bridge.checkpoints.recognise import Part, is_array
from optax_bridge.checkpoints.recognise import rows as rows_by_parameter
from optax_bridge.metadata.axis_metadata import key_names, leaves_with_path, unboxed
from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree
from optax_bridge.states import UNCERTAIN_SIGN, Kind, Slot, fill, unused_rows

T = TypeVar("T")
_TAKE_OUT = "The state has no field of that name: what the program put in, {}, it takes out first."
_OF_THE_OPTIMIZER = {"step", "params", "opt_state"}
_OTHER_OPTIMIZER = (
    "The state is that of another optimizer than the one restored into, or of one with other "
    "settings: make the transformation that corresponds to the optimizer that wrote it."
)


def from_state_dict(
    target: T, state: Any, name: str = ".", *, missing: str = "error", allow_nan: bool = False
) -> T:
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
      allow_nan: let NaN and infinities in parameters and moments through.

    Returns:
      A tree like the target; its next step is the one that the saved one would have taken.

    Raises:
      CheckpointError: a leaf of the target is missing, one is of another shape, type or
        optimizer, or a parameter or a moment is not finite.

    Warns:
      LeftOverWarning: something is left over beside the states.
      ConvertedWarning: something has another type in the checkpoint.
    """
    place = "state dict" if name == "." else name
    return _restored(target, state, place, missing, allow_nan, by_hand=True)


def from_bytes(
    target: T, encoded_bytes: bytes, *, missing: str = "error", allow_nan: bool = False
) -> T:
    """Restores msgpack, of `flax.optim` or of today: `flax.serialization.from_bytes`.

    Args:
      target: see `from_state_dict`.
      encoded_bytes: what `flax.serialization.to_bytes` gave.
      missing: see `from_state_dict`.
      allow_nan: see `from_state_dict`.

    Returns:
      See `from_state_dict`.

    Raises:
      CheckpointError: see `from_state_dict`.
    """
    saved = serialization.msgpack_restore(encoded_bytes)
    return _restored(target, saved, "bytes", missing, allow_nan)


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
    allow_nan: bool = False,
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
      allow_nan: see `from_state_dict`.

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
            return _restored(target, by_flax(path, None), path, missing, allow_nan)
        read = read_checkpoint(path, _size_of(target))
        if target is None:
            return as_arrays(read.tree)
        if read.format != ORBAX:
            _, fitted = _fitted(target, read.tree, path, missing, allow_nan)
            return restored(target, as_arrays(fitted))
        new = _from_orbax(target, read.tree, path, missing, by_flax)
        if not allow_nan:
            check_finite(new, target, path)
        return new


def _from_orbax(target: T, saved: PyTree, path: str, missing: str, by_flax: Any) -> T:
    """Restores what Orbax has saved: it brings arrays to the devices where the target has them."""
    try:  # numbers are looked at when they are restored: they may lie on many devices
        fit, fitted = _fitted(target, saved, path, missing, allow_nan=True)
    except CheckpointError:
        if named_as_pytree(target, saved):
            return placed_like(target, by_flax(path, outline_on_host(target)))
        raise
    scalars = any(isinstance(leaf, np.generic) for leaf in jax.tree.leaves(target))
    if fit.is_exact and not scalars:  # Orbax refuses NumPy's scalars
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


def restored_like(target: T, saved: PyTree, place: Place, allow_nan: bool = False) -> T:
    """What `restore_checkpoint` gives for a tree that was read; its arrays may be read later.

    Raises:
      CheckpointError: as `restore_checkpoint`, or the target holds no `TrainState`.
    """
    if not has_states(target):
        raise CheckpointError(
            place, "a template that holds a TrainState", type(target).__name__,
            "Give a function that makes what the program saves: a TrainState, or a dict, tuple or "
            "dataclass of JAX (flax.struct) with some in it.",
        )  # fmt: skip
    return _restored(target, saved, place, "error", allow_nan)


def _restored(
    target: T, saved: PyTree, place: Place, missing: str, allow_nan: bool, *, by_hand: bool = False
) -> T:
    _, fitted = _fitted(target, saved, place, missing, allow_nan, by_hand=by_hand)
    return restored(target, fitted)


def _fitted(
    target: Params,
    saved: PyTree,
    place: Place,
    missing: str,
    allow_nan: bool,
    *,
    by_hand: bool = False,
) -> tuple["LegacyFit", Any]:
    if missing not in ("error", "keep"):
        raise ValueError(f'missing: expected "error" or "keep", found {missing!r}')
    outline, saved = outlined(target), plain(saved)
    keep = missing == "keep"
    fit = LegacyFit(place, outline, saved, keep=keep, allow_nan=allow_nan, by_hand=by_hand)
    fitted = fit.tree(outline, saved, (), "program")
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
        self,
        place: Place,
        outline: Any,
        saved: PyTree,
        *,
        keep: bool = False,
        allow_nan: bool = False,
        by_hand: bool = False,
    ):
        super().__init__(place, keep=keep, allow_nan=allow_nan)
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
            self._over(saved[name], (*path, name), "state" if path else "program")
        for state in states if not is_own else ():
            others = (n for n in state if n not in ("step", "param_states"))
            self.surplus += [(*path, "state", n) for n in others]
        step = self._step(template.step, states, path)
        params = self.parameters(template, saved["target"], (*path, "target"))
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
            name: self.tree(value, found[name], (*path, name), OWNERS.get(name, "state"))
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
        step = self.leaf(expected, steps[0], at, "state")
        self.check_step(step, at)
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
        old = self.opt_state_template(template, params)
        rows, places = self._rows(unboxed(template.params), saved, states, old, path)
        used: set[Names] = set()

        def take(slot: Slot, value: Leaf) -> Leaf:
            names = (*path, "opt_state", *slot.path)
            if slot.kind is Kind.UNCERTAIN_SIGN:
                self.wrong.append((names, *UNCERTAIN_SIGN))
            elif slot.kind is not Kind.FIELD:
                self.missing.append(names)
            else:
                at = places[slot.row]
                if slot.row in used:
                    self.wrong.append((at, "one place in the new state", "several"))
                used.add(slot.row)
                return slot.signed(self._moment(slot.leaf, value, at))
            return slot.leaf

        new = fill(old, rows, step, take)
        for row in unused_rows(rows, used):
            self.surplus.append(places[row])
            older = has_older_weight_norm(states[0]["param_states"])
            self.remedy = OLDER_WEIGHT_NORM if older else _OTHER_OPTIMIZER
        return new

    def _moment(self, expected: Leaf, saved: Leaf, path: Names) -> Leaf:
        """A field of a parameter's state, as the template has it."""
        new = self.reconciled(saved, expected, path)
        if new is None:
            self.wrong.append((path, kind(expected), kind(saved)))
            self.remedy = _OTHER_OPTIMIZER
            return expected
        return self._typed(expected, new, path, "opt_state")

    def _own_state(self, template: Any, params: Params, saved: PyTree, path: Names) -> OptState:
        """The state that a definition of the user's own makes, field by field."""
        old = self.opt_state_template(template, params)
        return restored(old, self.tree(outlined(old), saved, path, "opt_state"))

    def _rows(
        self, params: Params, saved: PyTree, states: PyTree, opt_state: OptState, path: Names
    ) -> tuple[dict[Names, Any], dict[Names, Names]]:
        """The rows of the checkpoint by the paths of the template's parameters.

        Returns:
          The rows, see `optax_bridge.states`, and where each stands in the checkpoint.
        """
        flat = leaves_with_path(params)
        numbers = jax.tree.structure(params).unflatten(range(len(flat)))
        template_names = {
            at: key_names(flat[index][0])
            for at, index in leaves(plain(serialization.to_state_dict(numbers)))
        }
        if len(states) > 1 or saved["state"] is not states[0]:
            fields = self._grouped(saved["target"], states, opt_state, path).items()
        else:
            part = Part(path, saved["target"], states[0]["param_states"], 0)
            fields = ((names, row) for names, _, row in rows_by_parameter(part, self.place))
        rows: dict[Names, Any] = {}
        places: dict[Names, Names] = {}
        for names, row in fields:
            is_boxed = names not in template_names and names[-1:] == (LEVEL,)
            own = template_names.get(names[:-1] if is_boxed else names)
            if own is None:
                continue  # of a parameter that the template has not, which is said
            for field, leaf in leaves(row):
                rows[(*own, *field)] = leaf
                places[(*own, *field)] = (*path, "state", "param_states", *names, *field)
        return rows, places

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

    def leaf(self, expected: PyTree, saved: PyTree, path: Names, owner: Owner) -> Leaf:
        """Fits a leaf, whichever of both have copies for devices."""
        if self.saved_copies != self.copies and hasattr(saved, "shape") and expected is not None:
            new = self.reconciled(saved, expected, path)
            saved = saved if new is None else new
        return super().leaf(expected, saved, path, owner)

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
