"""Handlers of interrupts from the first import on; imports nothing slow."""

import os
import signal
import sys
import time
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # the exit code of shells for it
_heard = 0  # interrupts that reached `interrupt`


def end(number: int, frame: FrameType | None) -> NoReturn:
    """Ends the process with one line, as long as no command has anything to clean up."""
    del number, frame
    print("interrupted", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Ends the process during an import, else raises KeyboardInterrupt, which commands handle."""
    global _heard
    _heard += 1
    if _is_importing(frame):
        end(number, frame)
    raise KeyboardInterrupt


def repeat_interrupt(unraisable: "sys.UnraisableHookArgs") -> None:
    """A hook that sends an interrupt again that came while a library called back, and was lost."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    import threading  # nothing needs it before that

    threading.Thread(target=_interrupt_until_heard, args=[_heard], daemon=True).start()


def _interrupt_until_heard(before: int) -> None:
    """Sends it more than once: one that comes just before a call that waits does not wake it."""
    import threading

    main = threading.main_thread().ident
    while _heard == before:
        time.sleep(0.05)
        if hasattr(signal, "pthread_kill") and main is not None:  # to the thread, which it wakes
            signal.pthread_kill(main, signal.SIGINT)
        else:
            os.kill(os.getpid(), signal.SIGINT)
        if signal.getsignal(signal.SIGINT) is not interrupt:
            return  # another handler, which does not say whether it was called


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
