"""Where the command `optax-bridge` starts: imports nothing slow, so that Ctrl-C is heard at once.

Python's own way is a `KeyboardInterrupt` out of wherever the program is: a page of traceback, and
while libraries are being imported they turn it into another error, or go on.
"""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130  # the exit code of shells for it


def main() -> None:
    """Runs the command; 2 and how to install it where the packages for it are missing."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # ignored in the background
        signal.signal(signal.SIGINT, interrupt)
    from optax_bridge.installed import MissingExtraError, require

    try:
        require("cli", "optax-bridge")
    except MissingExtraError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    from optax_bridge.command import app  # which imports those packages, and is slow to import

    try:
        app()
    finally:  # done, and said so: while Python ends, an interrupt just ends it
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


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
