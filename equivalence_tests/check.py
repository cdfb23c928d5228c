"""`optax-bridge check`: runs the suite here and says what is identical, rounds or differs."""

import json
import os
import platform as python_platform
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from equivalence_tests import report
from equivalence_tests.suite import Check, Result, checks, run

# Packages whose version can change bits, or the meaning of a claim.
DECIDE_BITS = ("optax-bridge", "jax", "jaxlib", "flax", "optax", "numpy")

HELD, BROKEN, MISUSE = 0, 1, 2
PLATFORMS = ("cpu", "gpu", "tpu")


def versions() -> dict[str, str]:
    """The versions of everything that decides bits, Python's included."""
    return {
        **{name: metadata.version(name) for name in DECIDE_BITS},
        "python": python_platform.python_version(),
    }


def check(
    only: Sequence[str] = (),
    json_file: Path | None = None,
    svg_file: Path | None = None,
    platform: str | None = None,
    steps: int = 100,
    console: Console | None = None,
) -> int:
    """Runs the suite and prints its table.

    Args:
      only: names of optimizers or problems; empty for all.
      json_file: where to write the results as JSON as well.
      svg_file: where to draw the table as well.
      platform: `cpu`, `gpu` or `tpu`; the default platform if None. One that is not there is "not
        run".
      steps: number of steps of each run, at least 1.
      console: where to print; standard output if None.

    Returns:
      The exit code: 0 if every claim held, 1 if one did not, 2 for misuse.
    """
    console = console or report.wide_console()
    problems = Console(stderr=True, soft_wrap=True)
    if steps < 1:
        problems.print(f"--steps is {steps}; it must be at least 1")
        return MISUSE
    for option, file in (("--json", json_file), ("--svg", svg_file)):
        if file is not None and not file.resolve().parent.is_dir():
            folder = file.resolve().parent
            problems.print(f"{option} {file}: the folder {folder} does not exist")
            return MISUSE
    try:
        chosen = checks(only)
    except ValueError as error:
        problems.print(f"--only: {error}")
        return MISUSE
    if platform not in (None, *PLATFORMS):
        problems.print(f"--platform {platform}: expected one of {', '.join(PLATFORMS)}")
        return MISUSE
    try:
        device = jax.devices(platform)[0]
    except RuntimeError:
        here = ", ".join(sorted({d.platform for d in jax.devices()}))
        console.print(f"{platform}: not run, there is no such device here (there is {here})")
        console.print("0 comparisons: not run")
        _write_json(json_file, {"platform": platform, "ran": False, "results": []})
        return HELD
    # What the warning tells a program is no news to the suite, which makes legacy optimizers by the
    # dozen.
    warnings.filterwarnings("ignore", message="flax.optim was removed", category=DeprecationWarning)
    results = run_all(chosen, steps, device)
    environment = {
        "versions": versions(),
        "device": device.device_kind,
        "platform": device.platform,
    }
    table = report.table(results, f"{device.platform}, {steps} steps each")
    console.print(table)
    report.print_broken(console, results)
    console.print(report.closing_line(results))
    if svg_file is not None:
        _write(svg_file, report.drawn(table, report.closing_line(results)))
    _write_json(
        json_file, {**environment, "ran": True, "steps": steps, "results": report.rows(results)}
    )
    return HELD if all(result.held for result in results) else BROKEN


def run_all(chosen: Sequence[Check], steps: int, device: Any) -> list[Result]:
    """Runs checks, two at a time, with a progress bar on a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    results: list[Result] = []
    with (
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
        ThreadPoolExecutor(2) as pool,
    ):
        bar = progress.add_task("checking", total=len(chosen))

        def one(check: Check) -> list[Result]:
            with jax.default_device(device):  # the setting is a thread's own
                return run(check, steps)

        for check, outcome in zip(chosen, pool.map(one, chosen), strict=True):
            progress.update(bar, advance=1, description=f"checking {check.entry}")
            results.extend(outcome)
    return results


def _write_json(file: Path | None, content: dict[str, Any]) -> None:
    if file is not None:
        _write(file, json.dumps(content, indent=1) + "\n")


def _write(file: Path, text: str) -> None:
    temporary = file.with_name(f".{file.name}.part")
    temporary.write_text(text)
    temporary.replace(file)


def use_compilation_cache() -> None:
    """Keeps compiled programs between runs; JAX_COMPILATION_CACHE_DIR says where else."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update(
            "jax_compilation_cache_dir", str(_cache_folder() / "optax-bridge" / "jax")
        )
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _cache_folder() -> Path:
    if "XDG_CACHE_HOME" in os.environ:
        return Path(os.environ["XDG_CACHE_HOME"])
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")


def print_list(only: Sequence[str] = ()) -> int:
    """Prints the ids of the checks that `check` would run; returns the exit code."""
    try:
        for item in checks(only):
            print(item)
    except ValueError as error:
        Console(stderr=True).print(f"--only: {error}")
        return MISUSE
    return HELD
