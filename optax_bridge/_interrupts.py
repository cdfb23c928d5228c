"""What an interrupt does from the first import on; imports nothing slow."""

import os
import sys
from types import FrameType

INTERRUPTED = 130  # the exit code of shells for it


def interrupt(number: int, frame: FrameType | None) -> None:
    """Ends the process during an import, else raises KeyboardInterrupt, which commands handle."""
    del number
    if _is_importing(frame):
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)
    raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
