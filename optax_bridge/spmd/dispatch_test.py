import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from optax_bridge.spmd.config import config_for_function
from optax_bridge.spmd.dispatch import (
    DISPATCH_KEY,
    InputDispatcher,
    SpmdInputDispatcher,
    without_padding,
)
from optax_bridge.spmd.evaler import JsonlWriter, SpmdEvaler
from optax_bridge.spmd.examples import regression
from optax_bridge.spmd.input import ArrayBatches, ArrayInput, IteratorInput
from optax_bridge.spmd.mesh import mesh_in_scope


def dispatcher(**kwargs) -> Any:
    cfg = InputDispatcher.default_config().set(name="dispatcher", **kwargs)
    return cfg.instantiate(parent=None)


@pytest.mark.parametrize(
    ("logical", "physical", "feeds", "readers", "shards"),
    [
        (2, None, 4, None, [(2, 0), (2, 1), (2, 0), (2, 1)]),
        (8, 16, 4, [3, 1], [(2, 0), (2, 1), (2, 0), (2, 0)]),
        (8, None, 2, None, [(2, 0), (2, 1)]),
        (3, 12, 3, [2], [(1, 0), (1, 0), (1, 0)]),
    ],
)
def test_the_logical_batch_comes_back_whatever_is_padded(logical, physical, feeds, readers, shards):
    kwargs = dict(
        global_logical_batch_size=logical,
        global_physical_batch_size=physical,
        num_physical_feeds=feeds,
        logical_feed_indices=readers,
    )
    each = [dispatcher(physical_feed_index=index, **kwargs) for index in range(feeds)]
    configs = [feed.feed_read_config() for feed in each]
    assert [(c["num_shards"], c["shard_index"]) for c in configs] == shards
    whole = {
        "x": np.arange(2.0 * logical).reshape(logical, 2),
        "ids": np.arange(logical) + 2**30,
        "whole": np.float32(3),
    }
    whole["x"][0] = np.nan, np.inf  # which no other example may see
    parts = []
    for feed, config in zip(each, configs, strict=True):
        rows = np.array_split(np.arange(logical), config["num_shards"])[config["shard_index"]]
        part = {name: x[rows] if np.ndim(x) else x for name, x in whole.items()}
        parts.append(feed.logical_to_physical_batch(part))
    batch = jax.tree.map(lambda *x: np.concatenate(x) if np.ndim(x[0]) else x[0], *parts)
    assert len(batch["x"]) == each[0].config.global_physical_batch_size
    assert batch[DISPATCH_KEY].dtype == bool and batch[DISPATCH_KEY].sum() == logical
    jax.tree.map(
        np.testing.assert_array_equal, jax.jit(each[0].physical_to_logical_batch)(batch), whole
    )


def test_a_batch_of_another_size():
    feed = dispatcher(global_logical_batch_size=2)
    with pytest.raises(ValueError, match="a batch of 2 examples expected, found 1: 2 over 1 feeds"):
        feed.logical_to_physical_batch({"x": np.ones(1)})


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_physical_feeds": 2, "physical_feed_index": 2}, "is not within"),
        ({"logical_feed_indices": [0, 0]}, "each once"),
        ({"logical_feed_indices": []}, "one or more"),
        ({"logical_feed_indices": [1]}, "not all within"),
        ({"num_physical_feeds": 3, "physical_feed_index": 0}, "cannot be divided over 3 logical"),
        ({"num_physical_feeds": 4, "global_physical_batch_size": 6}, "over 4 feeds"),
        ({"global_physical_batch_size": 3}, "room for 3"),
    ],
)
def test_sizes_and_feeds_that_do_not_fit(kwargs, message):
    with pytest.raises(ValueError, match=message):
        dispatcher(**{"global_logical_batch_size": 4, "physical_feed_index": 0, **kwargs})


def test_the_part_of_a_process_is_what_its_devices_hold():
    cfg = SpmdInputDispatcher.default_config().set(
        name="d", global_logical_batch_size=8, partition_spec=PartitionSpec("data")
    )
    feed: Any = cfg.instantiate(parent=None)
    with pytest.raises(ValueError, match="needs a mesh"):
        feed.feed_read_config()
    with mesh_in_scope(Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))):
        assert feed.feed_read_config() == {"num_shards": 1, "shard_index": 0}
        batch = {"x": np.ones(8)}
        assert feed.logical_to_physical_batch(batch) is batch


def test_a_trainer_with_fewer_examples_than_devices(tmp_path):
    """Three examples of a step on four devices: the losses are those of one device."""

    def losses(folder, devices, **kwargs):
        cfg = regression.trainer(steps=3, mesh_shape=(devices, 1)).set(dir=str(folder))
        cfg.input.set(global_batch_size=3, **kwargs)
        trainer = cfg.instantiate(parent=None, devices=jax.devices()[:devices])
        found = {}
        trainer.add_listener(found.__setitem__)
        trainer.run(jax.random.PRNGKey(0))
        return found

    padding = InputDispatcher.default_config().set(
        global_logical_batch_size=3, global_physical_batch_size=4
    )
    padded = losses(tmp_path / "four", 4, input_dispatcher=padding)
    assert padded == pytest.approx(losses(tmp_path / "one", 1), rel=1e-5)


def samples():
    return regression.samples(100)


def ragged():
    yield from ArrayBatches(samples(), global_batch_size=32, num_epochs=1, drop_remainder=False)


@pytest.mark.parametrize(
    ("devices", "data"),
    [
        (
            8,
            ArrayInput.default_config().set(
                source=config_for_function(samples), global_batch_size=32, num_epochs=1
            ),
        ),
        (1, IteratorInput.default_config().set(source=ragged)),
    ],
    ids=["arrays", "generator"],
)
def test_an_evaluation_counts_every_example(tmp_path, devices, data):
    cfg = regression.trainer(steps=1, mesh_shape=(devices, 1)).set(dir=str(tmp_path))
    writer = JsonlWriter.default_config().set(paths=["input/y", "output/aux/.*"])
    cfg.evalers = {"all": SpmdEvaler.default_config().set(input=data, output_writer=writer)}
    trainer = cfg.instantiate(parent=None, devices=jax.devices()[:devices])
    [summary] = trainer.run(jax.random.PRNGKey(0), return_evaler_summaries=True)[
        "evaler_summaries"
    ]["all"].values()
    assert float(summary.weight) == 100
    params, batch = trainer.trainer_state.model, samples()
    hidden = jnp.tanh(batch["x"] @ params["first"]["weight"] + params["first"]["bias"])
    predicted = (hidden @ params["second"]["weight"] + params["second"]["bias"])[:, 0]
    expected = np.mean(np.square(predicted - batch["y"]))
    assert float(summary.mean) == pytest.approx(float(expected), rel=1e-6)
    [file] = (tmp_path / "outputs" / "all").iterdir()
    assert file.name == "step_00000001.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted(lines[0]) == ["input/y", "output/aux/predicted"]
    by_target = {line["input/y"]: line["output/aux/predicted"] for line in lines}
    assert len(lines) == 100 and sorted(by_target) == sorted(batch["y"].tolist())
    found = [by_target[y] for y in batch["y"].tolist()]
    np.testing.assert_allclose(found, predicted, rtol=1e-4, atol=1e-5)


def test_what_is_not_padded_stays():
    for batch in ({"x": jnp.ones(2)}, [jnp.ones(2)]):
        assert without_padding(batch) is batch
