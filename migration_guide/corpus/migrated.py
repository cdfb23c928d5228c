"""Migrates copies of programs, each of which is a program of its own."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from migration_guide.codemod import driver
from migration_guide.codemod.results import Options, Report


def migrate_copies(
    programs: Iterable[Path], recipes: Sequence[str], folder: Path
) -> dict[Path, Report]:
    """Writes each program, migrated by each recipe, to `folder/RECIPE/NAME`."""
    reports: dict[Path, Report] = {}
    for recipe in recipes:
        (folder / recipe).mkdir()
        for program in programs:
            copy = folder / recipe / program.name
            shutil.copytree(program, copy) if program.is_dir() else shutil.copy(program, copy)
            reports[copy] = driver.migrate([copy], Options(recipe=recipe))
            driver.save(reports[copy].results)
    return reports
