# pyright: strict
"""A training of PyTorch that goes on in Flax: `python -m migration_guide.from_pytorch` records it.

It is trained half-way in PyTorch, converted by the command with its names file, and goes on in
PyTorch, Linen and NNX, and in Linen without the moments. `results.json` has the losses.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from equivalence_tests.plot import stages_figure
from migration_guide.pictures import Html, Markdown, figures, rows

HERE = Path(__file__).parent / "examples" / "pytorch"
RESULTS = HERE / "results.json"
SAVED = HERE / "digits.pt"
HALF, STOP = 100, 200

Losses = dict[str, list[float]]


def run(program: str, *arguments: str) -> list[float]:
    """The losses that a program prints."""
    output = _output_of(str(HERE / f"{program}.py"), *arguments)
    return [json.loads(line)["loss"] for line in output.splitlines()]


def _output_of(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}:\n{done.stdout}{done.stderr}")
    return done.stdout


def go_on(folder: Path, stop: int) -> Losses:
    """The losses of each way to go on from the checkpoint of PyTorch."""
    converted = str(folder / "converted")
    names, like = str(HERE / "digits.toml"), f"{HERE / 'digits_flax.py'}:make_state"
    files = (str(SAVED), converted, "--names", names, "--like", like)
    _output_of("-m", "optax_bridge", "convert", *files)
    end = ("--stop", str(stop))
    return {
        "PyTorch": run("digits_torch", "--start", str(SAVED), *end),
        "Linen": run("digits_flax", "--start", converted, *end),
        "NNX": run("digits_flax", "--start", converted, "--nnx", *end),
        "without moments": run("digits_flax", "--start", converted, "--forget", *end),
    }


def main() -> None:
    """Records the losses."""
    run("digits_torch", "--stop", str(HALF), "--save", str(SAVED))
    with tempfile.TemporaryDirectory() as folder:
        losses = go_on(Path(folder), STOP)
    results = {way: [float(f"{value:.9g}") for value in values] for way, values in losses.items()}
    RESULTS.write_text(json.dumps(results) + "\n", encoding="utf-8")


def recorded_losses() -> Losses:
    """Returns the losses that `main` wrote."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def apart(losses: Losses, way: str) -> list[float]:
    """The distance of a way's losses from those of PyTorch, step by step."""
    return [abs(a - b) for a, b in zip(losses[way], losses["PyTorch"], strict=True)]


def pictures() -> Html:
    """The losses with and without moments, and their distances from those of PyTorch."""
    losses = recorded_losses()
    labels = {"moved": "Linen", "without moments": "without moments"}
    drawn = {
        "loss": {label: losses[way] for label, way in labels.items()},
        "distance from PyTorch's loss": {
            label: apart(losses, way) for label, way in labels.items()
        },
    }
    return figures({title: stages_figure(series, "", title) for title, series in drawn.items()})


def table() -> Markdown:
    """The largest distance of each way, and the last loss."""
    losses = recorded_losses()
    lines = [(way, f"{losses[way][-1]:.6f}", f"{max(apart(losses, way)):.1e}") for way in losses]
    return rows(("goes on in", "last loss", "largest distance from PyTorch"), lines)


if __name__ == "__main__":
    main()
