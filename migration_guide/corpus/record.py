"""Records what the corpus prints on the genuine flax 0.5.3, and the checkpoints that it writes.

    reference/bin/python migration_guide/corpus/record.py

The environment is that of `equivalence_tests/reference/requirements.txt`, Python 3.10.
"""

import filecmp
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import next_steps  # noqa: E402
import worker  # noqa: E402


class NotRecorded(Exception):
    """A program did not do what its recording needs."""


def main() -> int:
    """Runs every program and writes the recordings; returns 1 if one fails."""
    worker.lend_old_names()
    programs = [p for p in sorted((HERE / "programs").iterdir()) if not p.name.startswith("__")]
    resumed = [p for p in programs if p.stem in next_steps.OPTIMIZERS]
    resumed += sorted((HERE / "resumed").glob("*.py"))
    failed = _record("recorded.json", programs, _numbers)
    failed += _record("resumed.json", resumed, _resumed)
    return 1 if failed else 0


def _record(file, programs, record):
    """Writes what `record` gives for each program; returns how many failed."""
    recorded, failed = {}, 0
    for path in programs:
        try:
            recorded[path.stem] = record(path)
        except NotRecorded as error:
            failed += 1
            print(path.stem, error, file=sys.stderr)
    text = json.dumps(recorded, indent=1, sort_keys=True)
    (HERE / file).write_text(f"{text}\n", encoding="utf-8")
    print(f"{len(recorded)} programs recorded in {file}")
    return failed


def _numbers(path, *args):
    text = worker.output_of(str(path), "genuine", *args)
    try:
        return json.loads(text)
    except ValueError:
        raise NotRecorded(text) from None


def _resumed(path):
    """Trains, saves and keeps the checkpoint; then goes on from it, in a run of its own."""
    saved = HERE / "saved" / path.stem
    with tempfile.TemporaryDirectory() as root:
        folder, uninterrupted = Path(root, "interrupted"), Path(root, "uninterrupted")
        folder.mkdir()
        uninterrupted.mkdir()
        _numbers(path, str(folder), next_steps.SAVED_AT)
        shutil.rmtree(saved, ignore_errors=True)
        shutil.copytree(folder, saved)
        files = [p.relative_to(saved) for p in saved.rglob("*") if p.is_file()]
        if len(files) != 1:
            raise NotRecorded(
                f"one checkpoint expected after {next_steps.SAVED_AT} steps, found {files}"
            )
        printed = _numbers(path, str(folder), worker.NUM_STEPS)
        whole = _numbers(path, str(uninterrupted), worker.NUM_STEPS)
        for series in {"losses", "scales"} & set(printed if isinstance(printed, dict) else ()):
            whole[series] = whole[series][-len(printed[series]) :]
        if whole != printed:
            raise NotRecorded(f"goes on as {printed}, without interruption as {whole}")
        now = folder / files[0]
        stays = now.exists() and filecmp.cmp(now, saved / files[0], shallow=False)
        return {
            "printed": printed,
            "old_file_stays": stays,
            "saves_again": not stays or sum(p.is_file() for p in folder.rglob("*")) > 1,
            "next_steps": next_steps.after(str(path), str(saved), next_steps.of_the_optimizer),
        }


if __name__ == "__main__":
    sys.exit(main())
