"""`python -m legacy_optim PROGRAM [ARGS...]`, or `-m MODULE`: runs it as it is."""

import sys
from collections.abc import Sequence

from legacy_optim.runner import run

USAGE = """\
usage: python -m legacy_optim [--quiet] PROGRAM [ARGS...]
       python -m legacy_optim [--quiet] -m MODULE [ARGS...]

Runs an unmodified program of flax.optim's time on today's JAX. At the end it says which old names
were used and where; --quiet leaves that out.

examples:
  python -m legacy_optim train.py --steps 100
  python -m legacy_optim -m mypackage.train
"""


def main(argv: Sequence[str]) -> int:
    """Runs the program that the arguments name.

    Args:
      argv: arguments after `python -m legacy_optim`.

    Returns:
      The program's exit code; 2 if the arguments name none.
    """
    rest = list(argv)
    quiet = bool(rest) and rest[0] in ("-q", "--quiet")
    rest = rest[1:] if quiet else rest
    if rest and rest[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    as_module = bool(rest) and rest[0] == "-m"
    rest = rest[1:] if as_module else rest
    if not rest or (rest[0].startswith("-") and not as_module):
        print(USAGE, end="", file=sys.stderr)
        return 2
    return run(rest[0], rest[1:], as_module=as_module, quiet=quiet)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
