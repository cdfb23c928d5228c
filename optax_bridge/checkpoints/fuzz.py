"""Throws damaged files at the readers: `python -m optax_bridge.checkpoints.fuzz --count 100000`."""

import argparse
import resource
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np

from optax_bridge.checkpoints.convert import convert_tree
from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.msgpack_format import decode
from optax_bridge.correspondence import UnsupportedSetting

FILES = Path(__file__).parent / "testdata"
_ADAM = parse_definition("Adam(learning_rate=1e-2)")


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """A file with one kind of damage: flipped bits, changed bytes, cut, doubled or moved pieces."""
    changed = bytearray(data)
    kind = rng.integers(6)
    places = rng.integers(len(data), size=int(rng.integers(1, 9)))
    if kind == 0:
        for place in places:
            changed[place] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        for place in places:
            changed[place] = int(rng.integers(256))
    elif kind == 2:
        del changed[places[0] :]
    elif kind == 3:
        start, end = sorted((int(places[0]), int(rng.integers(len(data)))))
        del changed[start:end]
    elif kind == 4:
        start, end = sorted((int(places[0]), int(rng.integers(len(data)))))
        changed[start:start] = changed[start:end]
    else:  # the largest lengths, where headers are likely
        changed[places[0] : places[0] + 5] = bytes([int(rng.integers(0xC4, 0xE0))]) + b"\xff" * 4
    return bytes(changed)


def survives(data: bytes) -> str:
    """Reads and converts: "read", "refused" with a CheckpointError, or the name of what escaped."""
    try:
        convert_tree(decode(data), _ADAM, allow_nan=True)
    except (CheckpointError, UnsupportedSetting):
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "read"


def main() -> None:
    """Runs the fuzzer and prints its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    files = [path.read_bytes() for path in sorted(FILES.glob("*.msgpack"))]
    outcomes: Counter[str] = Counter()
    slowest, started = 0.0, time.perf_counter()
    for number in range(arguments.count):
        data = mutated(files[number % len(files)], rng)
        before = time.perf_counter()
        outcomes[survives(data)] += 1
        slowest = max(slowest, time.perf_counter() - before)
    seconds = time.perf_counter() - started
    tracemalloc.start()
    for number in range(1000):
        survives(mutated(files[number % len(files)], rng))
    traced = tracemalloc.get_traced_memory()[1]
    for outcome, count in outcomes.most_common():
        print(f"{count:8} {outcome}")
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{arguments.count} inputs in {seconds:.0f} s, the slowest {slowest * 1e3:.0f} ms, peak "
        f"{resident:.0f} MiB resident, {traced / 2**20:.1f} MiB allocated by Python"
    )


if __name__ == "__main__":
    main()
