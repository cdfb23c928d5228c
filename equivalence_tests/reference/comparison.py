"""How far a replayed trajectory is from a recorded one."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from equivalence_tests.reference.load import Recording
from equivalence_tests.reference.replay import Flat


@dataclasses.dataclass(frozen=True)
class Difference:
    """The largest difference of one leaf.

    Attributes:
        path: `params/...` or `state/...`.
        step: the step, counted from 0, at which the difference is largest.
        found: the replayed value there.
        expected: the recorded value there.
        relative: the difference over the leaf's scale at that step: its largest finite magnitude
            in the recording so far. Infinity where one is finite and the other is not, where two
            infinities have different signs, and where integers or flags differ at all.
        bits: whether any element at any step has other bits. NaNs are all equal.
    """

    path: str
    step: int
    found: float
    expected: float
    relative: float
    bits: bool

    def __str__(self) -> str:
        return (
            f"{self.path}: step {self.step}: expected {self.expected!r}, found {self.found!r}, "
            f"{self.relative:.3g} of the tensor's scale"
        )


def structure_error(recording: Recording, params: Flat, state: Flat, absent: object) -> str | None:
    """Says how the trees of one step differ from the recording's in paths, dtypes or shapes."""
    for title, found, expected in (
        ("params", _signature(params), _signature(recording.params, stacked=True)),
        ("state", _signature(state), _signature(recording.state, stacked=True)),
        ("state without arrays", absent, dict(recording.absent)),
    ):
        if found != expected:
            return f"{recording.case.name}: {title}: expected {expected}, found {found}"
    return None


def differences(recording: Recording, steps: list[tuple[Flat, Flat]]) -> list[Difference]:
    """Compares every leaf of parameters and state at every step.

    Args:
        recording: what the genuine flax.optim did.
        steps: parameters and state after each step, in structure equal to the recording.

    Returns:
        One entry for each leaf that has elements, the largest difference first.
    """
    found = []
    for title, part, recorded in (
        ("params", 0, recording.params),
        ("state", 1, recording.state),
    ):
        for path, expected in recorded.items():
            if expected.size:
                start = recording.initial[path] if title == "params" else None
                replayed = np.stack([step[part][path] for step in steps])
                found.append(_difference(f"{title}/{path}", replayed, expected, start))
    return sorted(found, key=lambda difference: -difference.relative)


def _signature(
    tree: Mapping[str, np.ndarray], stacked: bool = False
) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {path: (leaf.dtype.name, leaf.shape[int(stacked) :]) for path, leaf in tree.items()}


def _difference(
    path: str, found: np.ndarray, expected: np.ndarray, start: np.ndarray | None
) -> Difference:
    steps = len(expected)
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    bits = not np.all(same & (np.signbit(found) == np.signbit(expected)) | np.isnan(found) & same)
    exact = expected.astype(np.float64).reshape(steps, -1)
    magnitude = np.where(np.isfinite(exact), np.abs(exact), 0.0).max(axis=1)
    if start is not None:
        magnitude[0] = max(magnitude[0], np.abs(start.astype(np.float64)).max())
    scale = np.maximum.accumulate(magnitude)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.abs(found.astype(np.float64).reshape(steps, -1) - exact) / scale
    # What is left of NaN here stands where only one side is finite, or both are zero.
    relative = np.where(np.isnan(relative), np.inf, relative)
    if expected.dtype.kind in "iub":
        relative[:] = np.inf
    relative = np.where(same.reshape(steps, -1), 0.0, relative)
    worst = np.unravel_index(np.argmax(relative), relative.shape)
    return Difference(
        path=path,
        step=int(worst[0]),
        found=float(found.reshape(steps, -1)[worst]),
        expected=float(exact[worst]),
        relative=float(relative[worst]),
        bits=bits,
    )
