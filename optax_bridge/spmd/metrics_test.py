import gc
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_bridge.recorded_test import refused
from optax_bridge.spmd.evaler import ModelSummaryAccumulator
from optax_bridge.spmd.summaries import (
    CompositeWriter,
    ImageSummary,
    JsonLinesWriter,
    MaxSummary,
    MetricAccumulator,
    MinSummary,
    NoOpWriter,
    SummaryWriter,
    SumSummary,
    WeightedSummary,
    _as_picture,
)
from optax_bridge.spmd.trees import tree_paths


def test_means_are_weighed():
    total = WeightedSummary(1.0, 1.0) + WeightedSummary(4.0, 2.0)
    assert (float(total.mean), float(total.weight)) == (3, 3)
    nothing = WeightedSummary(jnp.nan, 0.0) + WeightedSummary(1.0, 0.0)
    assert (float(nothing.mean), float(nothing.weight)) == (0, 0)
    negative = WeightedSummary(1.0, -3.0) + WeightedSummary(4.0, 1.0)
    assert (float(negative.mean), float(negative.weight)) == (0, -2)


@pytest.mark.parametrize(
    "kind, expected", [(MinSummary, [1, 2]), (MaxSummary, [3, 5]), (SumSummary, [4, 7])]
)
def test_elementwise(kind, expected):
    total = kind(jnp.array([1, 5])).accumulate(kind(jnp.array([3, 2])))
    np.testing.assert_array_equal(total.value(), expected)
    with refused(ValueError, "Shape mismatch: expected"):
        total.accumulate(kind(jnp.ones(3)))
    kind(np.float32(3)).validate()
    with refused(ValueError, "expected an array, found 3, a int"):
        kind(3).validate()
    with refused(TypeError, kind.__name__):
        total.accumulate(WeightedSummary(1.0, 1.0))


def test_images():
    image = ImageSummary(jnp.ones((4, 4, 3)))
    image.validate()
    assert image.value().shape == (1, 4, 4, 3)
    assert image.accumulate(ImageSummary(jnp.zeros((4, 4, 3)))) is image
    assert tree_paths({"img": image})["img"]._value == "img/_value"
    assert _as_picture(np.array([-1.0, 0.5, 1.0, 2.0])).tolist() == [0, 127, 255, 255]
    assert _as_picture(np.array([7], np.uint8)) == 7
    for shape in ((4, 4), (4, 4, 2)):
        with refused(ValueError, "ImageSummary"):
            ImageSummary(jnp.ones(shape)).validate()


def test_an_accumulator_is_a_pytree():
    accumulator = MetricAccumulator.default_config().instantiate()

    @jax.jit
    def updated(accumulator, x):
        accumulator.update({"a": WeightedSummary(x, 1.0), "b": x})
        return accumulator

    for x in (1.0, 3.0):
        accumulator = updated(accumulator, x)
    assert float(accumulator.summaries()["a"].mean) == 2 and accumulator.summaries()["b"] is None


def test_writers_write_what_they_can(tmp_path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    writers = {
        "board": SummaryWriter.default_config().set(write_every_n_steps=2),
        "lines": JsonLinesWriter.default_config(),
        "none": NoOpWriter.default_config(),
    }
    cfg = CompositeWriter.default_config().set(name="writer", dir=str(tmp_path), writers=writers)
    writer = cfg.instantiate(parent=None)
    writer.log_config(cfg)
    for step in (1, 2):
        writer(
            step,
            {
                "loss": jnp.bfloat16(0.5),
                "a": {"mean": WeightedSummary(3.0, 1.0), "hist": jnp.arange(4.0)},
                "image": ImageSummary(jnp.ones((2, 2, 3))),
                "text": "words",
                "kernel": jnp.ones((2, 2, 2, 2)),
                "not finite": jnp.array([1.0, jnp.nan]),
            },
        )
    writer.log_average_step_time(3, 0.25)
    writer.log_checkpoint("checkpoints", 3)
    writer.close()
    writer(4, {"loss": 0.25})
    writer.close()
    events = reading.EventAccumulator(str(tmp_path / "board")).Reload()
    tags = events.Tags()
    assert sorted(tags["scalars"]) == ["a/mean", "average_step_time", "loss"]
    assert [event.step for event in events.Scalars("loss")] == [2, 4]
    assert tags["histograms"] == ["a/hist", "kernel"] and len(tags["images"]) == 1
    assert {"trainer_config/text_summary", "checkpoint/text_summary"} <= set(tags["tensors"])
    lines = (tmp_path / "lines" / "summaries.jsonl").read_text().splitlines()
    assert len(lines) == 4 and '"a/mean": 3.0' in lines[0] and '"text": "words"' in lines[0]


def test_events_wait_for_one_another_and_none_is_lost(tmp_path, monkeypatch):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def steps() -> list[int]:
        events = reading.EventAccumulator(str(tmp_path)).Reload().Scalars("loss")
        for event in events:
            assert event.value == event.step / 2
            assert began[event.step] <= event.wall_time <= ended[event.step]
        return [event.step for event in events]

    def write(step: int) -> None:
        began[step] = time.time()
        writers[0](step, {"loss": step / 2})
        ended[step] = time.time()

    began: dict[int, float] = {}
    ended: dict[int, float] = {}
    cfg = SummaryWriter.default_config().set(name="writer", dir=str(tmp_path))
    writers = [cfg.instantiate(parent=None)]
    for step in range(400):
        write(step)
    assert {0, 100} <= set(steps()) and 399 not in steps()
    monkeypatch.setattr("optax_bridge.spmd.summaries._SECONDS_BETWEEN_FLUSHES", 0.0)
    write(400)
    assert steps() == [*range(401)]
    monkeypatch.undo()
    write(401)
    with pytest.raises(TypeError, match="complex"):
        writers[0](402, {"loss": 201.0, "bad": 1j})
    writers.clear()  # and nobody closes it
    gc.collect()
    assert steps() == [*range(402)]


def test_a_disk_that_was_full_takes_what_waited(tmp_path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    program = """
import resource, sys
from optax_bridge.spmd.summaries import SummaryWriter
writer = SummaryWriter.default_config().set(name="writer", dir=sys.argv[1]).instantiate(parent=None)
for step in range(60):
    writer(step, {"loss": step})
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, unlimited[1]))
try:
    writer.close()
except OSError:
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    for step in range(60, 80):
        writer(step, {"loss": step})
    writer.close()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program, str(tmp_path)], check=True)
    events = reading.EventAccumulator(str(tmp_path)).Reload().Scalars("loss")
    assert [event.step for event in events] == [*range(80)]


def test_arrays_that_do_not_add_up_are_said(caplog):
    cfg = ModelSummaryAccumulator.default_config().set(name="metrics")
    metrics = cfg.instantiate(parent=None, model=None)
    state = metrics.init_state(prng_key=jax.random.key(0), model_params={})
    state["accumulator"].update({"a": {"b": jnp.ones(2)}, "loss": WeightedSummary(1.0, 2.0)})
    summaries = [metrics.get_summaries(model_params={}, state=state) for _ in range(2)]
    assert summaries[1]["a"] == {"b": None}
    [record] = caplog.records
    assert "how they add up: a/b. In the model" in record.getMessage()
