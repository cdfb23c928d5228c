"""The pairs: each before-program, and what `migrate --old-random-numbers` makes of it.

python -m migration_guide.examples.pairs            # writes every after.py
python -m migration_guide.examples.pairs mnist vae
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from migration_guide.codemod import driver
from migration_guide.codemod.results import Options

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Example:
    """The facts of one example."""

    final: str
    rounding: str = ""
    needs: tuple[str, ...] = ()


_OPTAX_ADAM = "`optax.adam` multiplies by the learning rate in another order"

EXAMPLES = {
    "imagenet": Example("eval_accuracy"),
    "mnist": Example("eval_accuracy"),
    "nlp_seq": Example("eval_accuracy"),
    "pixelcnn": Example("eval_bits"),
    "ppo": Example("eval_return", needs=("gymnasium",)),
    "seq2seq": Example("eval_accuracy", _OPTAX_ADAM),
    "vae": Example("eval_loss", _OPTAX_ADAM),
    "wmt": Example("eval_similarity"),
}
NAMES = tuple(EXAMPLES)


def migrated(name: str) -> str:
    """Returns what `optax-bridge migrate` makes of an example's before-program."""
    options = Options(old_random_numbers=True)
    (result,) = driver.migrate([HERE / name / "before.py"], options).changed_files
    return result.code


def recorded(name: str) -> dict[str, Any]:
    """Returns what the genuine flax 0.5.3 printed: metric -> steps and values."""
    return _runs(name)["metrics"]


def nudged(name: str) -> dict[str, Any]:
    """As `recorded`, of a run from parameters whose last bits were others."""
    return _runs(name)["nudged"]


def _runs(name: str) -> dict[str, Any]:
    return json.loads((HERE / name / "recorded.json").read_text(encoding="utf-8"))


def main(names: Sequence[str]) -> int:
    """Writes the after-programs."""
    for name in names or NAMES:
        (HERE / name / "after.py").write_text(migrated(name), encoding="utf-8")
        print(f"{name}/after.py")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
