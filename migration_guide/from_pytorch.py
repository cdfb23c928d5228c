"""Trainings of PyTorch that go on in Flax: `python -m migration_guide.from_pytorch` records them.

Each is trained half-way in PyTorch, converted by the command with its names file, and
goes on in PyTorch, Linen and NNX, and in Linen without the moments. `results.json` has the losses.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from migration_guide.examples.curves import curves
from migration_guide.pictures import Html, Markdown, figures, rows

HERE = Path(__file__).parent / "examples" / "pytorch"
RESULTS = HERE / "results.json"
HALF, STOP = 100, 200
TITLES = {"digits": "digits, a convolutional network", "text": "text, a transformer"}

Losses = dict[str, dict[str, list[float]]]


def run(program: str, *arguments: str) -> list[float]:
    """The losses that a program prints."""
    command = [sys.executable, "-W", "ignore", str(HERE / f"{program}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")
    return [json.loads(line)["loss"] for line in done.stdout.splitlines()]


def convert(*arguments: str) -> None:
    """Runs `optax-bridge convert`."""
    command = [sys.executable, "-m", "optax_bridge", "convert", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")


def convert_checkpoint(name: str, saved: Path, folder: Path, *, nnx: bool = False) -> Path:
    """A checkpoint of PyTorch, converted."""
    kind = "_nnx" if nnx and (HERE / f"{name}_nnx.toml").exists() else ""
    out = folder / f"{name}{kind}"
    like = f"{HERE / f'{name}_flax.py'}:make{kind}_state"
    convert(str(saved), str(out), "--names", str(HERE / f"{name}{kind}.toml"), "--like", like)
    return out


def go_on(name: str, saved: Path, folder: Path, stop: int) -> dict[str, list[float]]:
    """The losses of each way to go on from a checkpoint of PyTorch."""
    linen = str(convert_checkpoint(name, saved, folder / "linen"))
    nnx = str(convert_checkpoint(name, saved, folder / "nnx", nnx=True))
    end = ("--stop", str(stop))
    return {
        "PyTorch": run(f"{name}_torch", "--start", str(saved), *end),
        "Linen": run(f"{name}_flax", "--start", linen, *end),
        "NNX": run(f"{name}_flax", "--start", nnx, "--nnx", *end),
        "without moments": run(f"{name}_flax", "--start", linen, "--forget", *end),
    }


def main(names: Sequence[str] = tuple(TITLES)) -> None:
    """Records the losses."""
    results: Losses = {}
    for name in names:
        with tempfile.TemporaryDirectory() as root:
            saved = HERE / "digits.pt" if name == "digits" else Path(root, f"{name}.pt")
            run(f"{name}_torch", "--stop", str(HALF), "--save", str(saved))
            losses = go_on(name, saved, Path(root), STOP)
        results[name] = {way: [float(f"{v:.9g}") for v in each] for way, each in losses.items()}
    RESULTS.write_text(json.dumps(results) + "\n", encoding="utf-8")


def recorded_losses() -> Losses:
    """Returns the losses that `main` wrote."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def apart(losses: dict[str, list[float]], way: str) -> list[float]:
    """The distance of a way's losses from those of PyTorch, step by step."""
    return [abs(a - b) for a, b in zip(losses[way], losses["PyTorch"], strict=True)]


def pictures() -> Html:
    """The losses of PyTorch under those of Linen and of a restart, and the distances."""
    drawn: dict[str, str] = {}
    for name, losses in recorded_losses().items():
        title = TITLES[name]
        for way, label in (("Linen", "moved"), ("without moments", "without moments")):
            series = {"PyTorch goes on": losses["PyTorch"], label: losses[way]}
            drawn[f"{title}: {label}"] = curves(series)
        distances = {
            "without moments": apart(losses, "without moments"),
            "moved": [max(d, 1e-9) for d in apart(losses, "Linen")],
        }
        drawn[f"{title}: distance from PyTorch's loss"] = curves(distances, logarithmic=True)
    return figures(drawn)


def table() -> Markdown:
    """The largest distance of each way, and the last loss."""
    lines = [
        (TITLES[name], way, f"{losses[way][-1]:.6f}", f"{max(apart(losses, way)):.1e}")
        for name, losses in recorded_losses().items()
        for way in losses
    ]
    return rows(("training", "goes on in", "last loss", "largest distance from PyTorch"), lines)


if __name__ == "__main__":
    main()
