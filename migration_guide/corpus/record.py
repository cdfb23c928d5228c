"""Records what the corpus and the examples print on the genuine flax 0.5.3, and what they save.

    reference/bin/python migration_guide/corpus/record.py
    reference/bin/python migration_guide/corpus/record.py --examples mnist ppo

The environment is that of `equivalence_tests/reference/requirements.txt`, Python 3.10.
"""

import argparse
import contextlib
import filecmp
import importlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"
sys.path.insert(0, str(HERE))

import comparing  # noqa: E402
import next_steps  # noqa: E402
import worker  # noqa: E402


class NotRecorded(Exception):
    """A program did not do what its recording needs."""


def main() -> int:
    """Runs the programs and writes the recordings; returns 1 if one fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", nargs="*", metavar="NAME", help="these alone; all if none")
    chosen = parser.parse_args().examples
    worker.lend_old_names()
    failed = _record_examples(chosen)
    if chosen is not None:
        return 1 if failed else 0
    programs = [p for p in sorted((HERE / "programs").iterdir()) if not p.name.startswith("__")]
    resumed = [p for p in programs if p.stem in next_steps.OPTIMIZERS]
    resumed += sorted((HERE / "resumed").glob("*.py"))
    failed += _record("recorded.json", programs, _numbers)
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


def _record_examples(names):
    """Writes into each example's folder its metrics and its first checkpoint; how many failed."""
    failed = 0
    for before in sorted(EXAMPLES.glob("*/before.py")):
        if names and before.parent.name not in names:
            continue
        try:
            recorded = _example(before)
        except NotRecorded as error:
            failed += 1
            print(before.parent.name, error, file=sys.stderr)
            continue
        text = json.dumps(recorded, sort_keys=True, separators=(",", ":"))
        (before.parent / "recorded.json").write_text(f"{text}\n", encoding="utf-8")
        print(f"{before.parent.name}: {', '.join(sorted(recorded['metrics']))}")
    return failed


def _example(before):
    """Trains, keeps a checkpoint two steps before an evaluation, and goes on from it the same."""
    saved = before.parent / "saved"
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as interrupted:
        lines = _lines(before, whole)
        half = min(Path(whole).iterdir(), key=lambda path: path.stat().st_mtime)
        stop = int(half.name.rpartition("_")[2]) - 2
        shutil.rmtree(saved, ignore_errors=True)
        _lines(before, saved, stop)
        shutil.copytree(saved, interrupted, dirs_exist_ok=True)
        went_on = _lines(before, interrupted)
        comparing.assert_close(went_on, lines[-len(went_on) :])
    with tempfile.TemporaryDirectory() as workdir, _last_bits_changed():
        nudged = _lines(before, workdir)
    recorded = {"metrics": lines, "nudged": nudged}
    return {name: comparing.columns(rows) for name, rows in recorded.items()}


@contextlib.contextmanager
def _last_bits_changed():
    """Optimizers start from the numbers next to the parameters that they are given."""
    import jax
    import numpy as np

    definitions = importlib.import_module("flax.optim").OptimizerDef
    create = definitions.create

    def nudged(self, target, *args, **kwargs):
        target = jax.tree_util.tree_map(lambda x: jax.numpy.nextafter(x, np.inf), target)
        return create(self, target, *args, **kwargs)

    definitions.create = nudged
    try:
        yield
    finally:
        definitions.create = create


def _lines(before, workdir, *stop):
    args = ["--workdir", str(workdir), *(f"--num_steps={step}" for step in stop)]
    text = worker.output_of(str(before), "genuine", *args)
    try:
        return comparing.lines(text)
    except AssertionError as error:
        raise NotRecorded(text) from error


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
