"""The pairs: each before-program, what `migrate` makes of it, and the lines that follow by hand.

    python -m migration_guide.examples.pairs            # writes every after.py
    python -m migration_guide.examples.pairs mnist vae

`by_hand.toml` beside this module has the lines that every program needs, one in an example's
folder those that it needs alone; each gives its reason. What a further step makes of an
after-program, such as the move from `pmap` to a mesh, is a file `NAME.toml` that becomes `NAME.py`
in the same way.
"""

import json
import sys
import tomllib
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

    shows: str
    final: str
    rounding: str = ""
    needs: tuple[str, ...] = ()


_OPTAX_ADAM = "`optax.adam` multiplies by the learning rate in another order"

EXAMPLES = {
    "imagenet": Example("residual network, digits; `Momentum`, `DynamicScale`", "eval_accuracy"),
    "mnist": Example("convolutional network, digits; `Momentum`", "eval_accuracy"),
    "nlp_seq": Example("tagger, Python's tokens; `Adam` with decay, schedule", "eval_accuracy"),
    "pixelcnn": Example("PixelCNN, digits; `Adam`, average of parameters", "eval_bits"),
    "ppo": Example("actor and critic, CartPole; `Adam`", "eval_return", needs=("gymnasium",)),
    "seq2seq": Example("LSTM, English words; `Adam`", "eval_accuracy", _OPTAX_ADAM),
    "vae": Example("variational autoencoder, digits; `Adam`", "eval_loss", _OPTAX_ADAM),
    "wmt": Example("transformer, English to German; `Adam` with decay", "eval_similarity"),
}
NAMES = tuple(EXAMPLES)


@dataclass(frozen=True)
class Edit:
    """A place that is changed by hand."""

    reason: str
    old: str
    new: str


def migrated(name: str) -> str:
    """Returns what `optax-bridge migrate` makes of an example's before-program."""
    (result,) = driver.migrate([HERE / name / "before.py"], Options()).changed_files
    return result.code


def edits(name: str, step: str = "by_hand") -> list[Edit]:
    """The changes by hand to an example, those that all examples share first."""
    files = [HERE / name / f"{step}.toml"]
    if step == "by_hand":
        files.insert(0, HERE / "by_hand.toml")
    return [
        Edit(**edit)
        for file in files
        if file.is_file()
        for edit in tomllib.loads(file.read_text(encoding="utf-8"))["edit"]
    ]


def edited(text: str, changes: Sequence[Edit]) -> str:
    """The text with the changes."""
    for change in changes:
        times = text.count(change.old)
        if times != 1:
            raise ValueError(
                f"an edit by hand replaces {change.old!r}: expected once in the program, found "
                f"{times} times; mend the edit, its reason is {change.reason!r}"
            )
        text = text.replace(change.old, change.new)
    return text


def further_steps(name: str) -> list[str]:
    """The programs that an example has behind its after-program, by name."""
    return sorted(path.stem for path in (HERE / name).glob("*.toml") if path.stem != "by_hand")


def programs(name: str) -> dict[str, str]:
    """Every program of an example that follows from its before-program: its name -> its text."""
    texts = {"after": edited(migrated(name), edits(name))}
    for step in further_steps(name):
        texts[step] = edited(texts["after"], edits(name, step))
    return texts


def recorded(name: str, program: str = "after", half_way: bool = False) -> dict[str, Any]:
    """Returns what an example's program is compared with: metric -> steps and values."""
    if program == "sharded":
        return _runs(name)["one_device_half_way" if half_way else "one_device"]
    return _runs(name)["metrics"]


def nudged(name: str) -> dict[str, Any]:
    """As `recorded`, of a run from parameters whose last bits were others."""
    return _runs(name)["nudged"]


def _runs(name: str) -> dict[str, Any]:
    return json.loads((HERE / name / "recorded.json").read_text(encoding="utf-8"))


def main(names: Sequence[str]) -> int:
    """Writes the programs that follow from the before-programs."""
    for name in names or NAMES:
        for stem, text in programs(name).items():
            (HERE / name / f"{stem}.py").write_text(text, encoding="utf-8")
            print(f"{name}/{stem}.py")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
