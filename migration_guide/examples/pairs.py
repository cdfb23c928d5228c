"""The pairs: each before-program, what `migrate` makes of it, and the lines that follow by hand.

    python -m migration_guide.examples.pairs            # writes every after.py
    python -m migration_guide.examples.pairs mnist vae

`by_hand.toml` beside this module has the lines that every program needs, one in an example's
folder those that it needs alone; each gives its reason. What a further step makes of an
after-program, such as the move from `pmap` to a mesh, is a file `NAME.toml` that becomes `NAME.py`
in the same way.
"""

import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from migration_guide.codemod import driver
from migration_guide.codemod.context import Options

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Example:
    """What differs from example to example.

    Attributes:
      shows: what the program trains, and with what, for tables.
      final: the metric that its last line is judged by.
      rounding: why its after-program differs from the before-program in rounding, or "".
      needs: packages beyond those of this project.
    """

    shows: str
    final: str
    rounding: str = ""
    needs: tuple[str, ...] = ()


EXAMPLES = {
    "mnist": Example("convolutional network; `Momentum`", "eval_accuracy"),
}
NAMES = tuple(EXAMPLES)


@dataclass(frozen=True)
class Edit:
    """A place that is changed by hand.

    Attributes:
      reason: why, for the guide's page.
      old: the text that stands there once.
      new: what takes its place.
    """

    reason: str
    old: str
    new: str


def migrated(name: str) -> str:
    """What `optax-bridge migrate` makes of an example's before-program."""
    (result,) = driver.migrate([HERE / name / "before.py"], Options()).changed
    return result.new


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
    """The text with the changes.

    Raises:
      ValueError: what a change replaces does not stand in the text exactly once.
    """
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


def main(names: Sequence[str]) -> int:
    """Writes the programs that follow from the before-programs."""
    for name in names or NAMES:
        for stem, text in programs(name).items():
            (HERE / name / f"{stem}.py").write_text(text, encoding="utf-8")
            print(f"{name}/{stem}.py")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
