"""Lets Atheris look for inputs that reach new branches of the readers; it need not be installed.

    python -m pip install atheris
    python -m tools.fuzz_by_coverage npz -max_total_time=600 corpus/

In place of a format stands `expression` for the text of `--optimizer`. What follows is libFuzzer's;
an input that ends in a traceback is left next to the corpus; given in place of it, it is run once.
"""

import importlib
import sys
from typing import Any

atheris: Any = importlib.import_module("atheris")  # has no types

with atheris.instrument_imports(
    include=["optax_bridge.checkpoints", "optax_bridge.correspondence"]
):
    from tools import checkpoint_fuzz, expression_fuzz

EXPRESSION = "expression"


def main() -> None:
    """Fuzzes the format that the first argument names, or `expression`; or all."""
    all_kinds = [*checkpoint_fuzz.formats(), EXPRESSION]
    kinds = [sys.argv.pop(1)] if sys.argv[1:] and sys.argv[1] in all_kinds else all_kinds

    def target(data: bytes) -> None:
        for kind in kinds:
            if kind == EXPRESSION:
                outcome = expression_fuzz.survives_bytes(data)
            else:
                outcome = checkpoint_fuzz.survives_bytes(kind, data)
            if outcome not in ("read", "refused"):
                raise RuntimeError(f"{kind}: {outcome}")

    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
