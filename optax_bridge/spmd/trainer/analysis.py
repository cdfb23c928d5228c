# pyright: strict
"""Descriptions of a training's state, as text."""

import math
from pathlib import Path

import jax.numpy as jnp

from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.config import ConfigBase
from optax_bridge.spmd.trainer.state import TrainerState
from optax_bridge.spmd.trees import flatten_items


def write_descriptions(folder: Path, *, config: ConfigBase, specs: TrainerState) -> None:
    """Writes what a run is into its folder: config, arrays of the state, parameters.

    Args:
      folder: the folder of the run.
      config: the trainer's.
      specs: `TensorSpec`s of its state.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_config.txt").write_text(config.debug_string() + "\n")
    (folder / "trainer_state_tree.txt").write_text(state_tree(specs))
    (folder / "model_analysis.txt").write_text(parameter_table(specs.model))


def changed_lines(folder: Path, config: ConfigBase) -> list[str]:
    """The lines that a config has (+) and that of the folder's last run had not, or lacks (-)."""
    file = folder / "trainer_config.txt"
    before = file.read_text().splitlines() if file.exists() else []
    now = config.debug_string().splitlines() if before else []
    gone, new = set(before).difference(now), set(now).difference(before)
    return [f"- {line}" for line in before if line in gone] + [
        f"+ {line}" for line in now if line in new
    ]


def state_tree(specs: TrainerState) -> str:
    """A line for each array of the state: path, dtype, shape, axes of the mesh."""
    lines = [
        f"{path}: {jnp.dtype(spec.dtype)}{list(spec.shape)} {spec.mesh_axes}"
        for path, spec in flatten_items(specs)
    ]
    return "\n".join(lines) + "\n"


def parameter_table(specs: PyTree) -> str:
    """A table of the model's parameters with shapes and sizes, and their sum."""
    rows = [
        (path, str(tuple(spec.shape)), math.prod(spec.shape)) for path, spec in flatten_items(specs)
    ]
    total = sum(size for _, _, size in rows)
    width = max((len(path) for path, _, _ in rows), default=0)
    lines = [f"{path:<{width}}  {shape:<20} {size:>14,}" for path, shape, size in rows]
    return "\n".join([*lines, f"{'total':<{width}}  {'':<20} {total:>14,}"]) + "\n"
