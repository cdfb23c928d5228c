# pyright: strict
"""Kills a training at random moments and lets it go on: are the losses those of an undisturbed one?

    python -m tools.killing --kills 30
    python -m tools.killing --kills 30 --processes 2

Each kill is SIGKILL, which leaves no time to save: while a process starts, compiles, restores,
takes steps, writes a checkpoint or removes an old one.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from optax_bridge.spmd.launch import free_port

CONFIG = "optax_bridge.spmd.examples.regression.trainer"
_PROGRAM = "from optax_bridge.cli.start import main; main()"


def command(folder: Path, *, steps: int, save_every: int, devices: int) -> list[str]:
    """The command line of a training of the smallest example."""
    fields = {
        "max_step": steps,
        "model.dropout.rate": 0.1,
        "checkpointer.save_policy.n": save_every,
        "checkpointer.save_policy.max_step": steps,
    }
    sets = [
        argument
        for key, value in fields.items()
        for argument in ("--set", f"trainer.{key}={value}")
    ]
    options = ["--dir", str(folder), "--devices", str(devices)]
    return [sys.executable, "-c", _PROGRAM, "train", CONFIG, *options, *sets]


class Processes:
    """The processes of one training."""

    def __init__(self, line: Sequence[str], count: int):
        environment = dict(os.environ, JAX_PLATFORMS="cpu", XLA_FLAGS="")
        together = ["--coordinator", f"localhost:{free_port()}", "--processes", str(count)]
        self._processes = [
            subprocess.Popen(
                [*line, *([] if count == 1 else [*together, "--process-id", str(index)])],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,
                text=True,
            )
            for index in range(count)
        ]

    def running(self) -> bool:
        """True if all processes run."""
        return all(process.poll() is None for process in self._processes)

    def kill(self, chance: random.Random) -> None:
        """Kills them all, in a random order."""
        for process in chance.sample(self._processes, len(self._processes)):
            process.send_signal(signal.SIGKILL)
        for process in self._processes:
            process.communicate()

    def wait(self) -> None:
        """Waits for all."""
        messages = [process.communicate()[1] for process in self._processes]
        if any(process.returncode for process in self._processes):
            raise RuntimeError("\n".join(messages))


def train_with_kills(
    folder: Path, line: list[str], processes: int, kills: int, seconds: float, seed: int = 0
) -> tuple[str, list[str]]:
    """A training that is killed again and again, and at last let to its end."""
    kills_so_far: list[str] = []
    chance = random.Random(seed)
    file = folder / "losses.csv"
    while len(kills_so_far) < kills:
        size = _size(file)
        running = Processes(line, processes)
        start = time.monotonic()
        early = chance.random() < 0.2
        wait = chance.uniform(0.5, 6.0) if early else chance.uniform(0.0, seconds)
        while running.running():
            if early or _size(file) != size:
                time.sleep(wait)
                break
            time.sleep(0.02)
        if not running.running():
            running.wait()
            raise RuntimeError(f"it ended before kill {len(kills_so_far) + 1}: ask for more steps")
        running.kill(chance)
        steps = file.read_text().count("\n") if file.exists() else 0
        names = sorted(path.name for path in (folder / "checkpoints").glob("*"))
        kills_so_far.append(
            f"after {time.monotonic() - start:.1f} s, at step {steps}, {', '.join(names)}"
        )
    Processes(line, processes).wait()
    return file.read_text(), kills_so_far


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def main() -> int:
    """Runs it; 0 if every loss was the same to the bit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch, name) for name in ("undisturbed", "killed")]
        lines = [
            command(f, steps=args.steps, save_every=args.save_every, devices=4 // args.processes)
            for f in folders
        ]
        Processes(lines[0], args.processes).wait()
        expected = (folders[0] / "losses.csv").read_text()
        losses, moments = train_with_kills(
            folders[1], lines[1], args.processes, args.kills, args.seconds, args.seed
        )
    for number, text in enumerate(moments, 1):
        print(f"kill {number}: {text}")
    same = losses == expected
    print(f"{args.kills} kills, {args.steps} losses: {'the same to the bit' if same else 'OTHER'}")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
