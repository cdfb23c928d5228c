"""Runs programs that print a line for each step in turns, a line at a time, and times every line.

Each runs in a process of its own, which waits after each line until it is its turn again: whatever
else the machine does meets all of them alike.
"""

import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

_MEGABYTE = 1e6


@dataclass
class Run:
    """A program's output, time and memory."""

    seconds: list[float] = field(default_factory=list)
    text: str = ""
    peak: float = 0.0


def in_turn(jobs: Mapping[str, tuple[str, list[str]]]) -> dict[str, Run]:
    """Runs programs in turns."""
    runs = {name: Run() for name in jobs}
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(_worker(*job)) for name, job in jobs.items()}
        order = list(workers)
        while workers:
            for name in [name for name in order if name in workers]:
                reply = _take_turn(workers[name])
                if "seconds" in reply:
                    runs[name].seconds.append(reply["seconds"])
                    continue
                runs[name].text, runs[name].peak = reply["text"], reply["peak"]
                del workers[name]
            order = order[1:] + order[:1]  # none has the first turn each time
    return runs


@contextlib.contextmanager
def _worker(mode: str, command: list[str]) -> Iterator[subprocess.Popen[str]]:
    # Of two settings of a flag XLA takes the last.
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    environment = dict(os.environ, XLA_FLAGS=flags)
    environment["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # both compile, as memory counts it
    line = [sys.executable, "-m", "migration_guide.examples.turns", mode, *command]
    process = subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _take_turn(process: subprocess.Popen[str]) -> dict:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args} ended with status {process.wait()}")
    reply = json.loads(line)
    if "Traceback" in reply.get("text", ""):
        raise RuntimeError(f"{process.args} failed:\n{reply['text']}")
    return reply


class _Turns(io.StringIO):
    """A program's standard output: every line ends its turn."""

    def __init__(self, asked: IO[str], answers: IO[str]):
        super().__init__()
        self._asked, self._answers = asked, answers
        self._start = time.perf_counter()

    def write(self, text: str) -> int:
        """Takes a part of a line."""
        written = super().write(text)
        if text.endswith("\n"):
            self.answer({"seconds": time.perf_counter() - self._start})
            self._asked.readline()
            self._start = time.perf_counter()
        return written

    def answer(self, reply: dict) -> None:
        """Ends the turn."""
        print(json.dumps(reply), file=self._answers, flush=True)


def main(mode: str, program: str, *args: str) -> None:
    """Runs a program: the other end of `in_turn`."""
    from migration_guide.corpus import worker  # not in the process that only waits

    sys.stdin.readline()
    turns = _Turns(sys.stdin, sys.stdout)
    text = worker.output_of(program, mode, *args, out=turns)
    # Linux counts in kilobytes, macOS in bytes.
    unit = 1.0 if sys.platform == "darwin" else 1024.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _MEGABYTE
    turns.answer({"text": text, "peak": peak})


if __name__ == "__main__":
    main(sys.argv[1], str(Path(sys.argv[2])), *sys.argv[3:])
