"""Checksums of a checkpoint's files: written at its end, compared before it is restored."""

import zlib
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from optax_bridge.checkpoints import CheckpointError
from optax_bridge.checkpoints.formats.trainer import CHECKSUMS, INDEX, step_in

_BLOCK = 2**24


def checksum_lines(folder: Path, files: Sequence[Path]) -> str:
    """Returns a line for each file with its checksum, size and name, and one for these lines."""
    lines = [
        f"{_crc32(file):08x} {file.stat().st_size} {file.relative_to(folder).as_posix()}\n"
        for file in files
    ]
    return "".join([*lines, _last_line(lines)])


def damage_of(folder: Path) -> list[str]:
    """Returns the problems of a step's files, a line each; the processes share the work."""
    try:
        *lines, last = (folder / CHECKSUMS).read_text().splitlines(keepends=True)
    except (OSError, ValueError):
        lines, last = list[str](), ""
    if not lines or last != _last_line(lines):
        state = "damaged" if (folder / CHECKSUMS).exists() else "missing"
        return [f"{CHECKSUMS}: {state}, which has the checksums of all other files"]
    entries = [line.rstrip("\n").split(" ", 2) for line in lines]
    count, is_wrong = jax.process_count(), np.zeros(len(entries), bool)
    for number in range(jax.process_index(), len(entries), count):
        is_wrong[number] = _problem_of(folder, *entries[number]) is not None
    if count > 1:
        is_wrong = np.any(multihost_utils.process_allgather(is_wrong), axis=0)
    problems = [
        _problem_of(folder, *entry) or f"{entry[2]}: damaged"
        for entry, is_bad in zip(entries, is_wrong, strict=True)
        if is_bad
    ]
    try:
        step_in(folder)
    except CheckpointError as error:
        other = f"{INDEX}: expected {error.expected}, found {error.found}. {error.remedy}"
        problems += [] if problems else [other]
    return problems


def _problem_of(folder: Path, crc: str, size: str, name: str) -> str | None:
    try:
        actual_size = (folder / name).stat().st_size
        if actual_size != int(size):
            return f"{name}: {size} bytes expected, found {actual_size}"
        matches = f"{_crc32(folder / name):08x}" == crc
        return None if matches else f"{name}: other bytes than were written"
    except FileNotFoundError:
        return f"{name}: missing"
    except OSError as error:
        return f"{name}: cannot be read: {error.strerror}"


def _crc32(file: Path) -> int:
    value = 0
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            value = zlib.crc32(block, value)
    return value


def _last_line(lines: Sequence[str]) -> str:
    return f"{zlib.crc32(''.join(lines).encode()):08x}\n"
