# pyright: strict
"""The start of the command `optax-bridge`: imports nothing slow, so that Ctrl-C is heard at once.

Python's own way is a `KeyboardInterrupt` out of wherever the program is: a page of traceback, and
while libraries are being imported they turn it into another error, or go on.
"""

import signal
import sys

from optax_bridge.cli.signals import end


def main() -> None:
    """Runs the command; without its packages, says how to install them and returns 2."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # ignored in the background
        signal.signal(signal.SIGINT, end)
    # Only now, so that an interrupt is heard meanwhile.
    from optax_bridge.cli.installed import MissingExtraError, release_warning, require, versions

    try:
        require("cli", "optax-bridge")
    except MissingExtraError as error:
        if sys.argv[1:] == ["--version"]:  # in a plain install too
            print(*(f"{name} {version}" for name, version in versions().items()), sep="\n")
            return
        print(error, file=sys.stderr)
        sys.exit(2)
    if warning := release_warning():
        print(f"warning: {warning}", file=sys.stderr)
    from optax_bridge.cli import app as cli  # imports those packages, and is slow

    try:
        cli.main()
    finally:  # done, and said so: while Python ends, an interrupt just ends it
        if signal.getsignal(signal.SIGINT) in (end, signal.default_int_handler):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
