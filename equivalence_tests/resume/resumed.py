"""Resumes an old checkpoint by the old program and by the migrated one, and compares.

The old checkpoint is restored twice: by Flax into the legacy optimizers that wrote it, and by this
package into the states of the migrated program. Both sides then take steps on the same gradients.
"""

import contextlib
import functools
import posixpath
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from flax.training import train_state
from jax.tree_util import KeyPath

import legacy_optim
from equivalence_tests.pair.equivalence import check_equivalence
from equivalence_tests.pair.report import Report
from equivalence_tests.resume.restored import each_pair, old_checkpoint, restored_by_flax
from equivalence_tests.sides.adapt import EquivalenceError, SideLike, as_side, on_host
from equivalence_tests.sides.programs import old_names
from equivalence_tests.sides.side import Side
from optax_bridge import TrainState
from optax_bridge.checkpoints import CheckpointError, LeftOverWarning, restore_checkpoint
from optax_bridge.checkpoints.definitions import parse_definitions
from optax_bridge.checkpoints.trees import plain
from optax_bridge.cli.programs import load_object
from optax_bridge.correspondence import Verdict
from optax_bridge.correspondence.expression import ExpressionError
from optax_bridge.metadata.axis_metadata import unboxed
from optax_bridge.metadata.paths import key_names, leaves
from optax_bridge.metadata.trees import Leaf, PyTree

NOT_SEEN = (
    "Both took steps on the same gradients; the effects of the model, the data and random numbers "
    "are not compared"
)
_MEND_FIRST = "First fix the leaves that are restored differently; then "
_NEXT_STEP = (
    "`optax-bridge compare OLD NEW`, with the constructor calls of both optimizers, names the "
    "setting that differs. If it differs as little as a float32 constant makes, pass both sides "
    "one rate: --learning-rate RATE"
)


@dataclass(frozen=True)
class Resumed:
    """The comparison of one checkpoint, restored both ways."""

    reports: Mapping[str, Report]
    steps: Mapping[str, int]
    others: int
    unequal: Sequence[str]
    dropped: Sequence[str] = ()
    added: Sequence[str] = ()
    neither: Sequence[str] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict of the optimizer that is farthest apart; different if any other leaf is."""
        order = list(Verdict)
        verdicts = [report.verdict for report in self.reports.values()]
        return Verdict.DIFFERENT if self.other_differences else max(verdicts, key=order.index)

    @property
    def other_differences(self) -> str:
        """The differences outside of the steps, in lines; empty where all is equal."""
        lines = {
            "restored differently: {}": self.unequal,
            "only in the checkpoint: {}; the migrated program drops it, as its state has no field "
            "of that name": _fold_paths(self.dropped),
            "only in the migrated program: {}; the old one restores nothing there": _fold_paths(
                self.added
            ),
        }
        return "\n".join(line.format(", ".join(paths)) for line, paths in lines.items() if paths)

    def as_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        return {
            "verdict": self.verdict.value,
            "steps": dict(self.steps),
            "optimizers": {path: report.as_dict() for path, report in self.reports.items()},
            "others_equal": self.others,
            "others_unequal": list(self.unequal),
            "others_only_in_checkpoint": list(self.dropped),
            "others_only_in_migrated": list(self.added),
            "others_restored_by_neither": list(self.neither),
        }

    @property
    def closing(self) -> str:
        """The verdict in one line."""
        how = {
            Verdict.IDENTICAL: "continues as the old one would have, bit for bit",
            Verdict.ROUNDING: "continues as the old one would have, except for rounding",
            Verdict.DIFFERENT: "does NOT continue as the old one would have",
        }
        mend = _MEND_FIRST if self.other_differences else ""
        next_step = f". {mend}{_NEXT_STEP}" if self.verdict is Verdict.DIFFERENT else ""
        outcome = f"the migrated optimizer {how[self.verdict]}"
        return f"{self.verdict.value}: {outcome}. {NOT_SEEN}{next_step}"

    def __str__(self) -> str:
        lines = []
        for path, report in self.reports.items():
            lines.append(f"{path or 'the state'}, restored at step {self.steps[path]}:")
            lines += [f"  {line}" for line in str(report).splitlines()]
        if self.others:
            leaves = "1 leaf" if self.others == 1 else f"{self.others} leaves"
            lines.append(f"outside the optimizers, restored equally by both: {leaves}")
        if self.other_differences:
            lines.append(self.other_differences)
        if self.neither:
            names = ", ".join(_fold_paths(self.neither))
            lines.append(f"in the checkpoint, restored by neither program: {names}")
        return "\n".join(lines)


def resume(
    checkpoint: Path,
    program: str,
    *,
    old: str | None = None,
    optimizers: Sequence[str] = (),
    steps: int = 48,
    gradients: PyTree = "all",
    learning_rate: float | None = None,
) -> Resumed:
    """Restores a checkpoint of `flax.optim` both ways, takes steps on both sides, and compares."""
    if bool(old) == bool(optimizers):
        raise EquivalenceError(
            "expected either --old train.py:make_state, of the old program, or "
            '--optimizer "Adam(learning_rate=1e-3)", its optimizer; the file has no hyper-'
            f"parameters. Found {'both' if old else 'neither'}."
        )
    template = load_object(program, make=True)
    if not _those(template, train_state.TrainState):
        raise EquivalenceError(
            f"{program}: expected a TrainState, or a tree that holds some, found "
            f"{_description(template)}. Name the function that makes the state to restore into, by "
            "TrainState.create"
        )
    read = _restore(str(checkpoint), lambda: old_checkpoint(checkpoint))
    with _left_over() as dropped:
        new = _restore(program, lambda: restore_checkpoint(str(read.path), template))
    with old_names():
        wanted = load_object(old, make=True) if old else _with_definitions(template, optimizers)
        old_state = _restore(old or program, lambda: restored_by_flax(read, wanted))
    # Without the old program, all that is known is that it restored all that it saved.
    neither = {*dropped} - _saved_names(old_state) if old else set[str]()
    compared = functools.partial(
        check_equivalence, gradients=gradients, steps=steps, names=("old", "migrated")
    )
    name = old or "the old side"
    return _compare_restored(old_state, new, {*dropped}, neither, learning_rate, compared, name)


def _compare_restored(
    old_state: PyTree,
    new_state: PyTree,
    dropped: set[str],
    neither: set[str],
    learning_rate: float | None,
    compared: Callable[..., Report],
    name: str,
) -> Resumed:
    """Compares the restored states of both sides, and the steps that they take."""
    states = _those(new_state, train_state.TrainState)
    legacy = _those(old_state, legacy_optim.Optimizer)
    reports, taken, unequal = {}, {}, []
    for path, optimizer, state in each_pair(legacy, states, name):
        taken[path] = int(np.max(np.asarray(optimizer.state.step)))
        if not _equal(optimizer.target, state.params):
            unequal.append(f"{path}/params".lstrip("/"))
        sides = (_with_rate(optimizer, learning_rate), _with_rate(state, learning_rate))
        reports[path] = compared(*sides, on_host(optimizer.target))
    others = _compare_others(old_state, new_state, (_copies(legacy, "state"), _copies(states)))
    return replace(
        others,
        reports=reports,
        steps=taken,
        unequal=[*unequal, *others.unequal],
        dropped=sorted({*others.dropped, *dropped} - neither),
        neither=sorted(neither),
    )


def _restore(name: str, restore: Callable[[], PyTree]) -> PyTree:
    try:
        return restore()
    except EquivalenceError:
        raise
    except CheckpointError as error:
        raise EquivalenceError(f"{name}: {error}") from None
    except Exception as error:  # any error of Flax on a template that does not fit
        raise EquivalenceError(
            f"{name}: restoring raised {type(error).__name__}: {error}"
        ) from error


def _those(tree: PyTree, kind: type) -> dict[str, object]:
    """Path -> each object of a class within a tree."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda node: isinstance(node, kind))
    return {"/".join(key_names(path)): leaf for path, leaf in leaves if isinstance(leaf, kind)}


def _description(value: object) -> str:
    """Returns the kind of an object that was made in a state's place, and of those in it."""
    parts = value if isinstance(value, Mapping | tuple) else ()
    names = [x if isinstance(x, str) else type(x).__name__ for x in parts]
    return type(value).__name__ + (f" with {', '.join(names[:5])}" if names else "")


def _with_definitions(template: PyTree, texts: Sequence[str]) -> PyTree:
    """The template with legacy optimizers where it has TrainStates."""
    try:
        named: dict[str, legacy_optim.OptimizerDef] = dict(parse_definitions(texts))
    except ExpressionError as error:
        raise EquivalenceError(f"--optimizer: {error}") from None
    paths = _those(template, train_state.TrainState)
    if len(paths) == 1 and len(named) == 1:
        named = {next(iter(paths)): next(iter(named.values()))}
    if named.keys() != paths.keys():
        raise EquivalenceError(
            f"--optimizer: expected one for each of {', '.join(paths)}, written "
            f"{next(iter(paths))}=Adam(...); found {', '.join(named)}"
        )

    def legacy(path: KeyPath, node: PyTree) -> PyTree:
        if not isinstance(node, train_state.TrainState):
            return node
        return named["/".join(key_names(path))].create(node.params)

    return jax.tree_util.tree_map_with_path(
        legacy, template, is_leaf=lambda node: isinstance(node, train_state.TrainState)
    )


def _with_rate(side: SideLike, learning_rate: float | None) -> Side:
    own_side = as_side(side)
    rate = None if learning_rate is None else jnp.float32(learning_rate)
    if isinstance(side, legacy_optim.Optimizer):
        arguments = {} if rate is None else {"learning_rate": rate}

        def step(optimizer: PyTree, grads: PyTree) -> PyTree:
            with old_names():  # a definition of the program's own may use what JAX has lost since
                return optimizer.apply_gradient(grads, **arguments)

        return replace(own_side, step=step)
    if rate is None:
        return own_side
    if isinstance(side, TrainState):
        return replace(own_side, step=lambda s, g: s.apply_gradients(grads=g, learning_rate=rate))
    return replace(own_side, step=_with_injected_rate(side, rate))


def _with_injected_rate(state: PyTree, rate: jax.Array) -> Callable[[PyTree, PyTree], PyTree]:
    """The step of Flax's own `TrainState`, which takes a rate in the state of Optax's injection."""
    if "learning_rate" not in getattr(state.opt_state, "hyperparams", {}):
        raise EquivalenceError(
            "--learning-rate: expected a state that takes a rate: an optax_bridge.TrainState, or "
            "the state of optax.inject_hyperparams(...) with a learning_rate; found Flax's "
            f"TrainState with {type(state.opt_state).__name__}. Leave the option out where the "
            "rate is part of the transformation"
        )

    def step(state: PyTree, grads: PyTree) -> PyTree:
        hyper_params = state.opt_state.hyperparams
        new = {**hyper_params, "learning_rate": rate.astype(hyper_params["learning_rate"].dtype)}
        opt_state = state.opt_state._replace(hyperparams=new)
        return state.replace(opt_state=opt_state).apply_gradients(grads=grads)

    return step


def _compare_others(
    old_state: PyTree, new_state: PyTree, copies: tuple[int | None, int | None]
) -> Resumed:
    """Compares the leaves outside of the optimizers, each side with its copies for devices."""
    kinds = (train_state.TrainState, legacy_optim.Optimizer)

    def others(tree: PyTree) -> dict[str, Leaf]:
        paths = jax.tree_util.tree_leaves_with_path(
            unboxed(tree), is_leaf=lambda node: isinstance(node, kinds)
        )
        return {"/".join(key_names(p)): leaf for p, leaf in paths if not isinstance(leaf, kinds)}

    old, new = others(old_state), others(new_state)
    shared = sorted(old.keys() & new.keys())
    unequal = [path for path in shared if not _equal(old[path], new[path], copies)]
    dropped, added = (sorted(side.keys() - shared) for side in (old, new))
    return Resumed({}, {}, len(shared) - len(unequal), unequal, dropped, added)


def _fold_paths(paths: Sequence[str]) -> list[str]:
    """Paths of leaves, with one name for all that stand below the same field."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(path.partition("/")[0], []).append(path)
    return [
        group[0] if len(group) == 1 else f"{posixpath.commonpath(group)} ({len(group)} leaves)"
        for group in groups.values()
    ]


def _saved_names(tree: PyTree) -> set[str]:
    """The paths of a tree's leaves as its checkpoint has them."""
    return {"/".join(names) for names, _ in leaves(plain(serialization.to_state_dict(tree)))}


@contextlib.contextmanager
def _left_over() -> Iterator[list[str]]:
    """The paths of what restoring within it leaves over; other warnings are given on."""
    paths: list[str] = []
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always", LeftOverWarning)
        yield paths
    for warning in recorded:
        if isinstance(warning.message, LeftOverWarning):
            paths += ["/".join(names) for names in warning.message.paths]
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


def _copies(states: Mapping[str, PyTree], *within: str) -> int | None:
    """For how many devices the steps of states are replicated; None if they are not."""
    for state in states.values():
        shape = np.shape(functools.reduce(getattr, within, state).step)
        if len(shape) == 1:
            return shape[0]
    return None


def _equal(
    first: PyTree, second: PyTree, copies: tuple[int | None, int | None] = (None, None)
) -> bool:
    """True if two trees have the same numbers, on every device where one side is replicated."""
    a, b = (jax.tree.leaves(on_host(value)) for value in (first, second))
    return len(a) == len(b) and all(
        _same(x, y, copies[0]) or _same(y, x, copies[1]) for x, y in zip(a, b, strict=True)
    )


def _same(copied: np.ndarray, single: np.ndarray, copies: int | None) -> bool:
    if copied.shape != single.shape and copied.shape == (copies, *single.shape):
        single = np.broadcast_to(single, copied.shape)
    nan = copied.dtype.kind == "f" == single.dtype.kind
    return copied.shape == single.shape and np.array_equal(copied, single, equal_nan=nan)
