"""Descriptions of a training's state, as text."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import jax.numpy as jnp

from optax_bridge.spmd.trees import flatten_items

if TYPE_CHECKING:
    from optax_bridge.spmd.trainer.trainer import SpmdTrainer


def write_descriptions(trainer: "SpmdTrainer", folder: Path) -> None:
    """Writes what a run is into its folder: config, arrays of the state, parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_config.txt").write_text(trainer.config.debug_string() + "\n")
    (folder / "trainer_state_tree.txt").write_text(state_tree(trainer))
    (folder / "model_analysis.txt").write_text(parameter_table(trainer))


def state_tree(trainer: "SpmdTrainer") -> str:
    """A line for each array of the state: path, dtype, shape, axes of the mesh."""
    lines = [
        f"{path}: {jnp.dtype(spec.dtype)}{list(spec.shape)} {spec.mesh_axes}"
        for path, spec in flatten_items(trainer.trainer_state_specs)
    ]
    return "\n".join(lines) + "\n"


def parameter_table(trainer: "SpmdTrainer") -> str:
    """A table of the model's parameters with shapes and sizes, and their sum."""
    rows = [
        (path, str(tuple(spec.shape)), math.prod(spec.shape))
        for path, spec in flatten_items(trainer.trainer_state_specs.model)
    ]
    total = sum(size for _, _, size in rows)
    width = max((len(path) for path, _, _ in rows), default=0)
    lines = [f"{path:<{width}}  {shape:<20} {size:>14,}" for path, shape, size in rows]
    return "\n".join([*lines, f"{'total':<{width}}  {'':<20} {total:>14,}"]) + "\n"
