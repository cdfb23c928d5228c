"""Files with a model's outputs for each example of an evaluation."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from optax_bridge.metadata.trees import Leaf, PyTree
from optax_bridge.spmd.config import REQUIRED, Required, config_class
from optax_bridge.spmd.dispatch import is_keys
from optax_bridge.spmd.module import Module, nowrap
from optax_bridge.spmd.trees import flatten_items


class BaseOutputWriter(Module):
    """Is given the batches of an evaluation and the outputs; an evaler calls it."""

    @config_class
    class Config(Module.Config):
        """Configures BaseOutputWriter."""

        dir: Required[str] = REQUIRED

    @nowrap
    def begin(self, step: int) -> None:
        """Begins the outputs of an evaluation."""
        raise NotImplementedError(type(self).__name__)

    @nowrap
    def write(self, *, input_batch: PyTree, output_batch: PyTree) -> None:
        """Writes the outputs for a batch; to be called by all processes.

        Args:
          input_batch: the global batch as the model got it.
          output_batch: the output of the metric calculator: {"loss", "aux"}.
        """
        raise NotImplementedError(type(self).__name__)

    @nowrap
    def end(self) -> None:
        """Ends the outputs of an evaluation."""
        raise NotImplementedError(type(self).__name__)


class JsonlWriter(BaseOutputWriter):
    """A file `step_00000100.jsonl` for each evaluation, with a line for each example.

    A line has the parts of the arrays that are about the example, by path: `input/x`,
    `output/aux/predicted`. The file has its name when all lines are in it.
    """

    @config_class
    class Config(BaseOutputWriter.Config):
        """Configures JsonlWriter."""

        paths: Sequence[str] = (".*",)

    def __init__(self, cfg: Config, *, parent: Module | None):
        super().__init__(cfg, parent=parent)
        self._file: Path | None = None
        self._stream: IO[str] | None = None

    @nowrap
    def begin(self, step: int) -> None:
        """Begins a file; one that was not ended is overwritten."""
        if jax.process_index() == 0:
            folder = Path(self._config.dir)
            folder.mkdir(parents=True, exist_ok=True)
            self._file = folder / f"step_{step:08d}.jsonl"
            self._stream = self._file.with_suffix(".part").open("w", encoding="utf-8")

    @nowrap
    def write(self, *, input_batch: PyTree, output_batch: PyTree) -> None:
        """Writes a line for each example of a batch."""
        sizes = [len(x) for x in jax.tree.leaves(input_batch) if jnp.ndim(x)]
        items = flatten_items({"input": input_batch, "output": output_batch})
        columns = {
            path: _on_host(x)
            for path, x in items
            if sizes
            and jnp.ndim(x)
            and len(x) == sizes[0]
            and any(re.fullmatch(pattern, path) for pattern in self._config.paths)
        }
        if self._stream is None:
            return
        for example in range(sizes[0] if columns else 0):
            line = {path: column[example].tolist() for path, column in columns.items()}
            self._stream.write(json.dumps(line) + "\n")

    @nowrap
    def end(self) -> None:
        """Gives the file its name."""
        if self._stream is not None and self._file is not None:
            self._stream.close()
            self._file.with_suffix(".part").replace(self._file)
            self._stream = None


def _on_host(x: Leaf) -> np.ndarray:
    """Returns a global array whole, in a dtype that becomes JSON."""
    if is_keys(x):
        x = jax.random.key_data(x)
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        x = multihost_utils.process_allgather(x, tiled=True)
    array = np.asarray(x)
    return array if array.dtype.kind in "biuf" else array.astype(np.float32)
