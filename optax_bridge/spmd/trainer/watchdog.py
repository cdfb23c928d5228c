"""A thread that notices when a training hangs, logs where every thread stands, and may end it."""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def watchdog(
    step: Callable[[], int | None],
    *,
    timeout_seconds: float | None,
    crash_seconds: float | None,
) -> Iterator[None]:
    """A scope in which a thread watches the step of a training.

    Args:
      step: gives the step; None before there is a state.
      timeout_seconds: after so long at one step, the stacks of all threads are logged, and again
        after as long; None: never.
      crash_seconds: after so long at one step that a run came to, the process is killed, so that
        its starter can start it again; None: never.

    Raises:
      ValueError: a time is not above 0, or the crash comes before the first log.
    """
    times = {
        "watchdog_timeout_seconds": timeout_seconds,
        "crash_on_hang_timeout_seconds": crash_seconds,
    }
    for name, seconds in times.items():
        if seconds is not None and not seconds > 0:
            raise ValueError(f"{name}: expected None or more than 0, found {seconds!r}")
    if None not in times.values() and crash_seconds < timeout_seconds:  # type: ignore[operator]
        raise ValueError(
            f"crash_on_hang_timeout_seconds {crash_seconds} is less than "
            f"watchdog_timeout_seconds {timeout_seconds}: nothing would be logged before"
        )
    if timeout_seconds is None and crash_seconds is None:
        yield
        return
    stop = threading.Event()
    arguments = (step, timeout_seconds, crash_seconds, stop)
    thread = threading.Thread(target=_watch, args=arguments, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _watch(
    step: Callable[[], int | None],
    timeout_seconds: float | None,
    crash_seconds: float | None,
    stop: threading.Event,
) -> None:
    first = last = step()
    moved = logged = time.monotonic()
    shortest = min(s for s in (timeout_seconds, crash_seconds) if s is not None)
    while not stop.wait(shortest / 10):
        now = time.monotonic()
        if (current := step()) != last:
            first = current if last is None else first
            last, moved, logged = current, now, now
            continue
        if timeout_seconds is not None and now - logged >= timeout_seconds:
            logged = now
            _log.error("no step for %.0f s, after step %s:\n%s", now - moved, last, all_stacks())
        # Before the first step there is the compilation, which takes as long as it takes.
        if crash_seconds is not None and last != first and now - moved >= crash_seconds:
            _log.error(
                "no step for %.0f s, after step %s: killed by crash_on_hang_timeout_seconds; the "
                "same run goes on from its last checkpoint",
                now - moved,
                last,
            )
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)


def all_stacks() -> str:
    """Returns where every thread of this process stands."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(number, number)}:\n{''.join(traceback.format_stack(frame))}"
        for number, frame in sys._current_frames().items()
    )
