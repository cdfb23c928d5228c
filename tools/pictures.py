"""Draws what commands print, for README.md: `nox -s pictures`."""

import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.text import Text

from equivalence_tests.report.table import drawn

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
PROGRAM = ROOT / "migration_guide" / "source" / "_static" / "old.py"
SHOWN = ("adagrad", "adam", "lamb", "momentum")
CHECK = f"optax-bridge check --svg check.svg {' '.join(f'--only {name}' for name in SHOWN)}"
MIGRATE = "optax-bridge migrate old.py"
COMPARE = (
    'optax-bridge compare "Adam(1e-2, weight_decay=1e-3)" "optax.adamw(1e-2, weight_decay=1e-3)"'
)
_COLUMN = 12.2  # as wide is a character in Rich's pictures
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def main() -> None:
    """Writes every picture."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "migrate.svg").write_text(migrate_picture(), encoding="utf-8")
    (FOLDER / "compare.svg").write_text(compare_picture(), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        _run_command(CHECK, Path(folder))
        shutil.copy(Path(folder, "check.svg"), FOLDER)


def migrate_picture() -> str:
    """Returns the diff that `migrate` shows of the quick start's program."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(PROGRAM, folder)
        diff, _, rest = _run_command(MIGRATE, Path(folder)).partition("\n1 file would")
    lines = [Text(line, style=_STYLES.get(line[:1], "")) for line in diff.splitlines()]
    closing = "1 file would" + rest.partition(",")[0]
    return drawn(Text("\n").join([Text(f"$ {MIGRATE}", style="bold"), *lines]), closing, MIGRATE)


def compare_picture() -> str:
    """Returns what `compare` says of Adam and AdamW, with the first of the proof's assumptions."""
    lines = _run_command(COMPARE, Path(tempfile.gettempdir())).splitlines()
    shown = lines.index("assumptions:") + 2
    body = Text("\n").join([Text(f"$ {COMPARE}", style="bold"), *map(Text, lines[:shown])])
    return drawn(body, f"- ... {len(lines) - shown} more", "optax-bridge compare")


def text_of(picture: str) -> str:
    """Returns the text of a picture, line by line, without what differs from run to run."""
    rows: dict[float, str] = {}
    for x, y, text in re.findall(
        r'<text[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', picture
    ):
        column = round(float(x) / _COLUMN)
        plain = html.unescape(text).replace("\xa0", " ")
        rows[float(y)] = rows.get(float(y), "").ljust(column) + plain
    lines = (text.rstrip() for _, text in sorted(rows.items()))
    return "\n".join(re.sub(r"\b\d+(\.\d+)? s\b", "... s", line) for line in lines)


def _run_command(command: str, folder: Path) -> str:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
