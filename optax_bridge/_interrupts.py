"""What an interrupt does from the first import on; imports nothing slow."""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130  # the exit code of shells for it


def end(number: int, frame: FrameType | None) -> None:
    """Ends the process with one line, as long as no command has anything to clean up."""
    del number, frame
    print("interrupted", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Ends the process during an import, else raises KeyboardInterrupt, which commands handle."""
    if _is_importing(frame):
        end(number, frame)
    raise KeyboardInterrupt


def repeat_interrupt(unraisable: "sys.UnraisableHookArgs") -> None:
    """A hook that sends an interrupt again that came while a library called back, and was lost."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    import threading  # nothing needs it before that

    if hasattr(signal, "pthread_kill"):  # to the thread that waits, which it wakes
        main = threading.main_thread().ident
        threading.Timer(0.01, signal.pthread_kill, (main, signal.SIGINT)).start()
    else:
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
