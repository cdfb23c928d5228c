"""Copies of the corpus' programs that `migrate` rewrites, for the tests."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from migration_guide.codemod import driver
from migration_guide.codemod.results import Options, Report


def migrated_copies(
    programs: Iterable[Path], recipes: Sequence[str], folder: Path
) -> tuple[dict[Path, Report], dict[Path, Path]]:
    """Writes each program, migrated alone by each recipe, to `folder/RECIPE/NAME`.

    Returns what `migrate` said of each copy; and for each the first with the same code, since a
    second run of it shows nothing new.
    """
    reports: dict[Path, Report] = {}
    for recipe in recipes:
        (folder / recipe).mkdir()
        for program in programs:
            copy = folder / recipe / program.name
            shutil.copytree(program, copy) if program.is_dir() else shutil.copy(program, copy)
            reports[copy] = driver.migrate([copy], Options(recipe=recipe))
            driver.save(reports[copy].results)
    first: dict[bytes, Path] = {}
    return reports, {copy: first.setdefault(_code(copy), copy) for copy in reports}


def _code(copy: Path) -> bytes:
    files = [copy] if copy.is_file() else sorted(copy.rglob("*.py"))
    return b"".join(file.name.encode() + file.read_bytes() for file in files)
