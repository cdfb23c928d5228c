"""The options of the user, and the results: of a module, a file, and all files of a run."""

import shlex
from dataclasses import dataclass
from pathlib import Path

UNKNOWN_TEMPLATE = "FUNCTION"  # to be filled in
WRAPPER = "state_to_restore"  # to be added, where the program's own call is known
UNKNOWN_PATH = "OLD"
UNKNOWN_CHECKPOINT = "CHECKPOINT"  # the same of `check-resume`, which only reads
UNKNOWN_RATE = "RATE"  # that the program computes
SOME_RATE = "0.1"  # in its place, where that plays no part


@dataclass(frozen=True)
class Options:
    """The user's options."""

    recipe: str = "auto"
    rules: frozenset[str] | None = None
    old_random_numbers: bool = False

    def selects(self, rule: str) -> bool:
        """True if a rule is applied."""
        return self.rules is None or rule in self.rules

    @property
    def exact(self) -> bool:
        """True if this project's transformations are written everywhere."""
        return self.recipe == "exact"

    @property
    def optax_alone(self) -> bool:
        """True if public Optax and Flax alone are written."""
        return self.recipe == "optax"


@dataclass(frozen=True, order=True)
class Message:
    """A message for the user."""

    line: int
    text: str
    by_hand: bool = True
    cell: int = 0
    new_line: int = 0

    def location(self, *, written: bool) -> str:
        """Returns the place in the rewritten file, or in the original one."""
        line = self.new_line if written else self.line
        return f"cell {self.cell}:{line}" if self.cell else str(line)


@dataclass(frozen=True)
class Restored:
    """A checkpoint that a program restores."""

    path: str
    template: str = ""
    call: str = ""  # what makes the template, with the arguments of the program's function
    optimizers: tuple[tuple[str, str], ...] = ()
    recipe: str = ""
    format: str = ""
    prefix: str = "checkpoint_"

    @property
    def checkpoint(self) -> str:
        """The path for `check-resume`."""
        return UNKNOWN_CHECKPOINT if self.path == UNKNOWN_PATH else self.path

    @property
    def is_to_be_filled_in(self) -> bool:
        """True if the command lacks the function that makes the template."""
        return not (self.optimizers or self.template)

    @property
    def is_known(self) -> bool:
        """True if the program shows both the template and all of its optimizers."""
        is_computed = any(UNKNOWN_RATE in call for _, call in self.optimizers)
        return bool(self.template and self.optimizers) and not is_computed

    def command(self, file: str) -> str:
        """Returns the command that converts it, with the template's function from a file."""
        old = Path(self.path)
        name = f"{old.stem}_new{old.suffix if self.format else ''}"
        unnamed = "NEW" if self.format else f"NEW/{self.prefix}STEP"
        new = unnamed if self.path == UNKNOWN_PATH else str(old.with_name(name))
        parts = ["optax-bridge", "convert", self.path, new]
        parts += ["--format", self.format] if self.format else []
        if not self.optimizers:
            return shlex.join([*parts, "--like", f"{file}:{self.template or UNKNOWN_TEMPLATE}"])
        parts += self.options()
        parts += ["--recipe", self.recipe] if self.recipe else []
        return shlex.join(parts)

    def options(self) -> list[str]:
        """Returns the options that name its optimizers."""
        calls = [(path, call.replace(UNKNOWN_RATE, SOME_RATE)) for path, call in self.optimizers]
        return [x for p, call in calls for x in ("--optimizer", f"{p}={call}" if p else call)]


@dataclass(frozen=True)
class Rewritten:
    """The result of rewriting a module."""

    code: str
    messages: tuple[Message, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    refused: str = ""
    checkpoints: tuple[Restored, ...] = ()
    compared: tuple[tuple[str, str], ...] = ()
    for_float32: bool = False  # public Optax would be another optimizer in half precision
    rate_at_steps: bool = False  # some definition has no learning rate of its own
    legacy_names: tuple[str, ...] = ()  # classes whose definitions stay legacy for what takes them


@dataclass(frozen=True, kw_only=True)
class FileResult(Rewritten):
    """The result of the rewriting of one file; its code is the file's whole text."""

    path: Path
    old: str
    encoding: str = "utf-8"

    @property
    def is_changed(self) -> bool:
        return self.old != self.code


@dataclass(frozen=True)
class Report:
    """The results of all files."""

    results: tuple[FileResult, ...]
    seen: int
    parsed: int
    seconds: float
    users: int = 0
    migrated: int = 0

    @property
    def changed_files(self) -> list[FileResult]:
        return [result for result in self.results if result.is_changed]

    @property
    def refusals(self) -> list[FileResult]:
        """Those that could not be read, rewritten or written."""
        return [result for result in self.results if result.refused]

    @property
    def rate_option(self) -> list[str]:
        """The option that gives `check-resume` the learning rate that the program's steps give."""
        is_given = any(result.rate_at_steps for result in self.results)
        return ["--learning-rate", SOME_RATE] if is_given else []

    @property
    def by_hand(self) -> bool:
        """True if something is left to a person."""
        return any(message.by_hand for result in self.results for message in result.messages)
