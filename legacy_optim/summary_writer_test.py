"""`flax.metrics.tensorboard` as `run` loads it, read by TensorBoard's own reader."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legacy_optim.summary_writer import SummaryWriter


def test_what_is_written_is_read(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    writer: Any = SummaryWriter(tmp_path)
    writer.scalar("loss", np.float32(2.0), np.int32(7))
    writer.histogram("weights", np.arange(8.0).reshape(2, 4), 1, bins=3)
    shapes = {"4x5": 1, "4x5x1": 1, "4x5x3": 1, "2x4x5": 2, "2x4x5x3": 2, "5x4x5x1": 3}
    for shape in shapes:
        writer.image(shape, np.zeros(tuple(map(int, shape.split("x")))), 2)
    writer.text("note", b"hello", 3)
    writer.hparams({"rate": 0.1})
    writer.close()
    events = reading.EventAccumulator(str(tmp_path)).Reload()
    [loss], [weights] = events.Scalars("loss"), events.Histograms("weights")
    assert (loss.step, loss.value) == (7, 2.0)
    assert weights.histogram_value.num == 8 and len(weights.histogram_value.bucket) <= 5
    tags = [f"{shape}/image/{number}" for shape, count in shapes.items() for number in range(count)]
    assert sorted(events.Tags()["images"]) == sorted(tags)
    images = [image for tag in tags for image in events.Images(tag)]
    assert {(image.width, image.height, image.step) for image in images} == {(5, 4, 2)}
    table = str(events.Tensors("hparams/text_summary")[0].tensor_proto)
    assert "| name | value |" in table and "| rate | 0.1 |" in table
    assert b"hello" in str(events.Tensors("note/text_summary")[0].tensor_proto).encode()
    with pytest.raises(ValueError, match="found a int"):
        writer.text("note", 3, 1)
    with pytest.raises(AttributeError, match=r"SummaryWriter\.audio needs TensorFlow"):
        _ = writer.audio
