"""The results of rewriting: of a module, of a file, and of all files of a run."""

from dataclasses import dataclass
from pathlib import Path

from migration_guide.codemod.writing.context import Message, Restored


@dataclass(frozen=True)
class Rewritten:
    """The result of rewriting a module.

    Attributes:
      code: the new source; the old one where nothing changed or nothing is safe.
      messages: for the user, by line.
      counts: rule -> how often it applied.
      refused: why the result was thrown away, or "".
      checkpoints: files that the module restores.
      compared: constructor calls of flax.optim, each with the call that took its place.
    """

    code: str
    messages: tuple[Message, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    refused: str = ""
    checkpoints: tuple[Restored, ...] = ()
    compared: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class FileResult(Rewritten):
    """The result of the rewriting of one file; its code is the file's whole text.

    Attributes:
      path: where it is.
      old: its text before.
      encoding: of the file.
    """

    path: Path
    old: str
    encoding: str = "utf-8"

    @property
    def changed(self) -> bool:
        return self.old != self.code


@dataclass(frozen=True)
class Report:
    """The results of all files.

    Attributes:
      results: of the files with something to say.
      seen: number of Python files and notebooks that were looked at, and of others that were named.
      parsed: number of files that were parsed.
      seconds: the whole took.
      users: number of files that use flax.optim, or have comments of an earlier run.
      migrated: number of files that use optax_bridge or legacy_optim.
    """

    results: tuple[FileResult, ...]
    seen: int
    parsed: int
    seconds: float
    users: int = 0
    migrated: int = 0

    @property
    def changed(self) -> list[FileResult]:
        return [result for result in self.results if result.changed]

    @property
    def refused(self) -> list[FileResult]:
        """Those that could not be read, rewritten or written."""
        return [result for result in self.results if result.refused]

    @property
    def by_hand(self) -> bool:
        """True if something is left to a person."""
        return any(message.by_hand for result in self.results for message in result.messages)
