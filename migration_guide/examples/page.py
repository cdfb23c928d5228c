"""Parts of the guide's page about the examples, from recordings and measurements."""

import difflib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from equivalence_tests.plot import stages_figure
from migration_guide.examples import pairs
from migration_guide.pictures import Html, Markdown, figures, rows

RESULTS = pairs.HERE / "results.json"


def results() -> dict[str, Any]:
    """Returns the results that `compare` wrote."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def table(examples: Mapping[str, Any]) -> Markdown:
    """Metrics, times and memory of pairs."""
    head = ("example", "final metric", "flax 0.5.3", "`optax-bridge run`", "after")
    head += ("after and `run`", "step", "memory")
    lines = [
        (
            f"[{name}](#{name})",
            f"`{pairs.EXAMPLES[name].final.removeprefix('eval_')}`",
            f"{row['recorded_final']:.5g}",
            f"{row['before_final']:.5g}",
            f"{row['final']:.5g}",
            "same bits" if row["from_before"] == 0 else f"{row['from_before']:.0e} apart",
            f"{row['step_ratio']:.3f}",
            f"{row['peak_ratio']:.3f}",
        )
        for name, row in examples.items()
    ]
    return rows(head, lines)


def origin() -> Markdown:
    """Says on which machine and versions the figures were measured."""
    measured = results()
    versions = ", ".join(f"{name} {version}" for name, version in measured["versions"].items())
    return Markdown(
        f"Measured with Python {measured['python']}, {versions}, on {measured['cores']} cores "
        f"({measured['machine']}) that {_burden(measured['load'])}. The recorded runs are "
        "flax 0.5.3's with jax 0.4.13, on such a machine."
    )


def _burden(load: int) -> str:
    if load < 1:
        return "did nothing else"
    return f"had {load} other process{'es' * (load > 1)} to run, so that the times are rough"


def drift() -> Html:
    """Draws how far after-programs, and nudged runs, are from the recorded losses at each step."""
    pictures = {}
    for name, measured in results()["examples"].items():
        expected = np.asarray(pairs.recorded(name)["loss"]["values"])
        scale = np.max(np.abs(expected))
        others = {
            "other last bits": pairs.nudged(name)["loss"]["values"],
            "after": measured["loss"],
        }
        distances = {
            k: (np.abs(np.asarray(v) - expected) / scale).tolist() for k, v in others.items()
        }
        pictures[name] = stages_figure(distances, "", f"distances of {name}")
    return figures(pictures)


def diff(name: str) -> Markdown:
    """An example's before-program and its after-program, as a diff."""
    before, after = (
        (pairs.HERE / name / f"{program}.py").read_text(encoding="utf-8").splitlines()
        for program in ("before", "after")
    )
    lines = [*difflib.unified_diff(before, after, n=1, lineterm="")][2:]
    shown = ["" if line.startswith("@@") else line for line in lines]
    return Markdown("```diff\n" + "\n".join(shown).strip("\n") + "\n```\n")
