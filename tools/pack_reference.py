"""Packs what `record_reference.py` recorded: the recordings of each optimizer in one file.

python -m tools.pack_reference recorded
"""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

from equivalence_tests.recordings.format import Recording, pack, read

_REFERENCE = Path(__file__).resolve().parents[1] / "equivalence_tests" / "reference"


def main() -> None:
    """Writes the files of the repository."""
    folder = Path(sys.argv[1])
    files: dict[str, dict[str, Recording]] = {}
    for path in sorted(path.parent for path in folder.rglob("case.json")):
        name, run = path.relative_to(folder).as_posix(), read(path)
        case = json.loads((path / "case.json").read_text())
        stem = name if name.startswith("checkpoints/") else path.parent.name
        index = {**run.index, "case": case}
        files.setdefault(stem, {})[name] = dataclasses.replace(run, index=index)
    for stem, runs in files.items():
        pack(runs, _REFERENCE / f"{stem}.npz")
    for checkpoint in folder.rglob("*.msgpack"):
        shutil.copy(checkpoint, _REFERENCE / checkpoint.relative_to(folder))


if __name__ == "__main__":
    main()
