"""Trajectories in a file: recorded on one platform, compared on another."""

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from equivalence_tests.compare.comparison import Comparison, compare
from equivalence_tests.compare.trees import leaf_name
from equivalence_tests.output_files import write_bytes_with
from equivalence_tests.sides.inputs import digits
from equivalence_tests.suite.case import Result
from optax_bridge.correspondence import Verdict
from optax_bridge.correspondence.claim import rounding
from optax_bridge.metadata.trees import PyTree

_INDEX = "index.json"
# What zipfile, json and NumPy raise on files that are damaged, or that another program wrote.
_UNREADABLE = (
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    RuntimeError,  # encrypted; a method that is not supported
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
)

NOT_RUN = "recorded, but not run here"

# Each entry's own bound is for one platform; another one sums in another order, fuses elsewhere and
# has other powers and roots. Measured over 100 steps, five optimizers and three models, in ULP at
# the tensor's scale, against jax 0.10.2 on a CPU with AVX-512:
#
#                                recorded gradients     its own gradients
#     jax 0.10.2, SSE4.2                         11                    40
#     jax 0.10.2, AVX2                            0                    14
#     jax 0.10.2, 8 CPU devices                   0                     0
#     jax 0.12.0, AVX-512                         8                    19
#
# No GPU and no TPU is among them. What one more rounding can do at most is the bound for recorded
# gradients: a beta2 of 0.999 makes an error of 2^-24 in its power a thousand times as large in the
# bias correction 1 - beta2^t, and half of that comes through the root: 250 ULP of the first step.
# (PyTorch's Adam, whose powers are float64, is 127 ULP from Optax's in float32.) With gradients of
# their own, sides differed by up to 9 times what the same optimizer showed without: a model hands
# the distance on through the next gradient, and 16 times is what it may add.
OPEN_LOOP = rounding(256, "another platform's order of operations, powers and roots")
CLOSED_LOOP = rounding(16 * 256, "the same, amplified by the model through the gradients")


@dataclass(frozen=True)
class Recording:
    """The content of a recording."""

    environment: Mapping[str, object]
    steps: int
    runs: Mapping[str, Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Against:
    """One run here and the recorded one."""

    id: str
    comparison: Comparison | None
    verdict: Verdict | None
    note: str = ""


def save(
    file: Path, results: Sequence[Result], environment: Mapping[str, object], steps: int
) -> None:
    """Writes every result's trajectory. The file holds plain arrays: no pickle."""
    arrays: list[np.ndarray] = []
    runs = {}
    for result in results:
        if result.trajectory is None:
            continue
        runs[str(result.case)] = rows = []
        for path, leaf in _flat(result.trajectory).items():
            # Dtypes that NumPy's format does not know, bfloat16, are kept by their bits.
            raw = np.ascontiguousarray(leaf).view(np.dtype(f"u{leaf.dtype.itemsize}"))
            rows.append({"leaf": path, "dtype": str(leaf.dtype), "array": len(arrays)})
            arrays.append(raw)
    index = {"environment": environment, "steps": steps, "runs": runs}

    def write(stream: BinaryIO) -> None:
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_INDEX, json.dumps(index))
            for number, array in enumerate(arrays):
                with archive.open(f"{number}.npy", "w") as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)

    write_bytes_with(file, write)


def load(file: Path) -> Recording:
    """Reads what `save` wrote."""
    try:
        with zipfile.ZipFile(file) as archive:
            index = json.loads(archive.read(_INDEX))
            runs = {
                name: {row["leaf"]: _array(archive, row) for row in rows}
                for name, rows in index["runs"].items()
            }
            environment = {"platform": "", "device": "", **index["environment"]}
            return Recording(environment, index["steps"], runs)
    except _UNREADABLE as error:
        raise ValueError(
            f"{file}: expected a file written by `optax-bridge check --record`, found "
            f"{type(error).__name__}: {error}"
        ) from None


def against(results: Sequence[Result], recording: Recording) -> list[Against]:
    """Compares the trajectories here with the recorded ones, one outcome for each of either."""
    outcomes = []
    for result in results:
        if result.trajectory is None:
            continue
        recorded = recording.runs.get(str(result.case))
        if recorded is None:
            outcomes.append(Against(str(result.case), None, None, "not in the recording"))
            continue
        closed = result.case.problem in digits.MODELS
        left_out = digits.without_gradient(result.case.problem) if closed else ()
        sides = (recorded, _flat(result.trajectory))
        try:
            comparison = compare(
                *({name: side[name] for name in side if name not in left_out} for side in sides)
            )
        except ValueError as error:
            outcomes.append(Against(str(result.case), None, Verdict.DIFFERENT, str(error)))
            continue
        note = f"{', '.join(left_out)}: left out, its gradient is rounding" if left_out else ""
        claim = CLOSED_LOOP if closed else OPEN_LOOP
        outcomes.append(Against(str(result.case), comparison, comparison.verdict(claim), note))
    here = {str(result.case) for result in results}
    outcomes += [Against(name, None, None, NOT_RUN) for name in recording.runs if name not in here]
    return outcomes


def _flat(trajectory: PyTree) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(trajectory)
    return {leaf_name(path): np.asarray(leaf) for path, leaf in leaves}


def _array(archive: zipfile.ZipFile, row: Mapping[str, Any]) -> np.ndarray:
    with archive.open(f"{row['array']}.npy") as member:
        raw = np.lib.format.read_array(member, allow_pickle=False)
    return raw.view(jax.numpy.dtype(row["dtype"]))
