"""`python -m legacy_optim PROGRAM [ARGS...]`, or `-m MODULE`: runs it unchanged."""

import os
import sys
from collections.abc import Sequence

if __name__ == "__main__":
    # `python -m` looks into the working folder first, where the program's own modules may lie under
    # names of the standard library. What is imported from here on is not meant for them.
    sys.path[:] = [entry for entry in sys.path if entry not in ("", os.getcwd())]

from legacy_optim.runner import MISUSE, run

USAGE = """\
usage: python -m legacy_optim [--quiet] [--todays-defaults] PROGRAM [ARGS...]
       python -m legacy_optim [--quiet] [--todays-defaults] -m MODULE [ARGS...]

Runs an unmodified program of flax.optim's time on today's JAX. At the end it lists the old names
that were used and where, and the old defaults that were restored.

  -q, --quiet        print nothing at the end
  --todays-defaults  keep all of today's JAX defaults, even those that decide numbers

examples:
  python -m legacy_optim train.py --steps 100
  python -m legacy_optim -m mypackage.train
"""


def main(argv: Sequence[str]) -> int:
    """Runs the program that the arguments name."""
    rest = list(argv)
    options = set()
    while rest and rest[0] in ("-q", "--quiet", "--todays-defaults"):
        options.add(rest.pop(0))
    if rest and rest[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    as_module = bool(rest) and rest[0] == "-m"
    rest = rest[1:] if as_module else rest
    if not rest or (rest[0].startswith("-") and rest[0] != "-" and not as_module):
        print(USAGE, end="", file=sys.stderr)
        return MISUSE
    return run(
        rest[0],
        rest[1:],
        as_module=as_module,
        quiet=bool(options & {"-q", "--quiet"}),
        todays_defaults="--todays-defaults" in options,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
