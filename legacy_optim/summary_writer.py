"""`flax.metrics.tensorboard` without TensorFlow: the same event files by tensorboardX.

`run` loads this file under that name. Legacy module: `flax.metrics.tensorboard`.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorboardX
from numpy.typing import ArrayLike


class SummaryWriter:
    """Writes event files for TensorBoard."""

    def __init__(self, log_dir: "str | os.PathLike[str]", auto_flush: bool = True):
        self._writer: Any = tensorboardX.SummaryWriter(os.fspath(log_dir))
        self._auto_flush = auto_flush

    def close(self) -> None:
        """Writes the remaining events and closes the file."""
        self._writer.close()

    def flush(self) -> None:
        """Writes the remaining events."""
        self._writer.flush()

    def scalar(self, tag: str, value: ArrayLike, step: int) -> None:
        """Writes a number."""
        self._add("scalar", tag, float(np.asarray(value)), step)

    def text(self, tag: str, textdata: str | bytes, step: int) -> None:
        """Writes text, which TensorBoard shows as Markdown."""
        if not isinstance(textdata, str | bytes):
            raise ValueError(f"textdata: expected a string, found a {type(textdata).__name__}")
        text = textdata.decode() if isinstance(textdata, bytes) else textdata
        self._add("text", tag, text, step)

    def histogram(self, tag: str, values: ArrayLike, step: int, bins: int | None = None) -> None:
        """Writes how numbers of any shape are distributed."""
        values = np.reshape(np.asarray(values), -1)
        self._add("histogram", tag, values, step, **({} if bins is None else {"max_bins": bins}))

    def image(self, tag: str, image: ArrayLike, step: int, max_outputs: int = 3) -> None:
        """Writes images of shape [H,W], [H,W,1], [H,W,3], [K,H,W], [K,H,W,1] or [K,H,W,3]."""
        image = np.asarray(image)
        if image.ndim == 2 or (image.ndim == 3 and image.shape[-1] in (1, 3)):
            image = image[np.newaxis]
        if image.ndim == 3:
            image = image[..., np.newaxis]
        for number, one in enumerate(np.broadcast_to(image, (*image.shape[:3], 3))[:max_outputs]):
            self._add("image", f"{tag}/image/{number}", one, step, dataformats="HWC")

    def hparams(self, hparams: Mapping[str, object]) -> None:
        """Writes hyper-parameters, as a table of strings."""
        rows = "".join(f"| {name} | {value} |\n" for name, value in hparams.items())
        self._add("text", "hparams", f"| name | value |\n|---|---|\n{rows}", 0)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"SummaryWriter.{name} needs TensorFlow: pip install tensorflow")

    def _add(self, kind: str, tag: str, value: ArrayLike, step: int, **options: Any) -> None:
        getattr(self._writer, f"add_{kind}")(tag, value, int(step), **options)
        if self._auto_flush:
            self._writer.flush()
