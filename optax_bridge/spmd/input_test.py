"""Batches of a training, divided over processes and devices, padded where these do not divide."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from optax_bridge.recorded_test import refused
from optax_bridge.spmd.config import config_for_class, config_for_function, register_validator
from optax_bridge.spmd.dispatch import DISPATCH_KEY, InputDispatcher, SpmdInputDispatcher
from optax_bridge.spmd.evaler import JsonlWriter, SpmdEvaler
from optax_bridge.spmd.examples import regression
from optax_bridge.spmd.input import (
    ArrayBatches,
    ArrayInput,
    IteratorInput,
    host_to_global_array,
    partition_by_path_rank,
)
from optax_bridge.spmd.trainer_test import run
from optax_bridge.spmd.trees import TensorSpec

DATA = {"x": np.arange(10), "y": np.arange(10) * 2.0}


@pytest.fixture
def mesh():
    with jax.set_mesh(Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))) as scope:
        yield scope


def test_processes_read_the_parts_of_one_batch():
    whole = ArrayBatches(DATA, global_batch_size=4, seed=1)
    parts = [
        ArrayBatches(DATA, global_batch_size=4, seed=1, process_index=i, process_count=2)
        for i in range(2)
    ]
    for _ in range(5):  # over the end of an epoch
        batch = next(whole)
        halves = [next(part) for part in parts]
        np.testing.assert_array_equal(batch["x"], np.concatenate([h["x"] for h in halves]))
        np.testing.assert_array_equal(batch["y"], batch["x"] * 2.0)


def test_an_epoch_has_each_example_once_and_its_own_order():
    batches = ArrayBatches(DATA, global_batch_size=5, num_epochs=2)
    seen = [batch["x"].tolist() for batch in batches]
    assert sorted(seen[0] + seen[1]) == sorted(seen[2] + seen[3]) == list(range(10))
    assert seen[0] + seen[1] != seen[2] + seen[3]


@pytest.mark.parametrize(
    "arrays, size, count, message",
    [
        ({"x": np.ones(4), "y": np.ones(3)}, 2, 1, "same length"),
        ({"x": np.ones(4)}, 5, 1, "more than the 4 examples"),
        ({"x": np.ones(4)}, 0, 1, "global_batch_size is 0, expected 1 or more"),
        ({"x": np.ones(4)}, 3, 2, "over 2 processes"),
    ],
)
def test_arrays_that_make_no_batches(arrays, size, count, message):
    with refused(ValueError, message):
        ArrayBatches(arrays, global_batch_size=size, process_count=count)


@pytest.mark.usefixtures("mesh")
def test_what_is_wrong_with_arrays_is_said_of_the_input():
    cfg = ArrayInput.default_config().set(
        name="input", source=lambda: {"text": np.array(["a", "b"])}, global_batch_size=4
    )
    with refused(ValueError, "input: global_batch_size 4 is more"):
        cfg.instantiate(parent=None).dataset()
    batches = cfg.set(global_batch_size=2).instantiate(parent=None)
    with refused(ValueError, "input: batch 'text': expected numb"):
        batches.global_batch(next(batches.dataset()), pad=True)


def test_a_batch_lies_along_the_devices_and_then_as_it_is_wanted(mesh):
    cfg = ArrayInput.default_config().set(
        name="input",
        source=lambda: {"x": np.arange(16.0).reshape(8, 2)},
        global_batch_size=8,
        partition_spec=PartitionSpec("data"),
    )
    batches = cfg.instantiate(parent=None)
    host = next(batches.batches(batches.dataset()))
    other = next(cfg.clone(seed=1).instantiate(parent=None).dataset())
    assert (other["x"] != host["x"]).any()
    assert batches.partition_for(host) == PartitionSpec(("data", "model"))
    read = host_to_global_array(host, partition=batches.partition_for(host))
    assert read["x"].sharding.shard_shape((8, 2)) == (1, 2)
    laid_out = jax.jit(lambda b: jax.tree.map(jnp.sin, batches.dispatch_global_batch(b)))(read)
    assert laid_out["x"].sharding.shard_shape((8, 2)) == (2, 2)
    assert batches.element_spec() == {
        "x": TensorSpec((8, 2), np.dtype("float32"), PartitionSpec(("data", "model")))
    }
    assert batches.partition_for({"x": np.ones((4, 2))}) == PartitionSpec("data")
    with refused(ValueError, r"'x' has 6 examples.*over 4 devices"):
        batches.partition_for({"x": np.ones((6, 2))})


def test_to_one_device_arrays_of_numpy_go_with_the_step_itself(mesh):
    cfg = IteratorInput.default_config().set(name="input", source=lambda: [])
    data: Any = cfg.instantiate(parent=None)
    batch = {"x": np.ones((8, 2), np.float32)}
    assert data.step_batch(batch)["x"].sharding.shard_shape((8, 2)) == (1, 2)
    with jax.set_mesh(Mesh(np.array(jax.devices()[3:4]), ("data",))):
        assert data.step_batch(batch) is batch
        assert data.step_batch({"x": jnp.ones((8, 2))})["x"].devices() == {jax.devices()[3]}
        for batch in ({}, {"x": np.ones(1)}):
            with refused(ValueError, "batch 'text': expected numbers"):
                data.step_batch({**batch, "text": np.array(["a"])})
        (masked,) = data.batches([{"x": np.ma.masked_array([1.0, 2.0])}])
        assert type(masked["x"]) is np.ndarray and data.step_batch(masked) is masked
    with refused(ValueError, "'x' has 6 examples"):
        data.step_batch({"x": np.ones((6, 2))})


def test_arrays_of_jax_stay_on_their_devices_and_may_be_keys(mesh):
    keys = jax.random.split(jax.random.key(0), 6)
    source = [{"x": jnp.ones((6, 2)), "key": keys}]
    cfg = IteratorInput.default_config().set(name="input", source=lambda: source)
    data: Any = cfg.instantiate(parent=None)
    [batch] = data.batches(data.dataset())
    assert batch["x"] is source[0]["x"] and batch["key"] is keys
    padded = data.global_batch(batch, pad=True)
    assert padded["key"].shape == (8,) and len(padded["key"].sharding.device_set) == 8
    back = jax.jit(data.dispatch_global_batch)(padded)
    np.testing.assert_array_equal(jax.random.key_data(back["key"]), jax.random.key_data(keys))
    source[0] = {"key": jax.random.split(keys[0], 8)}
    assert data.element_spec()["key"].dtype == keys.dtype
    [part] = ArrayBatches({"key": keys}, global_batch_size=6, shuffle=False, num_epochs=1)
    assert (part["key"] == keys).all()


def test_partitions_by_path_and_rank(mesh):
    rules: Any = {
        ("image", None): PartitionSpec("data", "model"),
        (None, 2): PartitionSpec("data"),
        (None, 1): PartitionSpec.UNCONSTRAINED,
    }
    partition = partition_by_path_rank(rules)
    batch = {"image": jnp.ones((4, 2, 2)), "image_text": jnp.ones((4, 4)), "label": jnp.ones(4)}
    out = jax.jit(partition)(batch)
    assert out["image"].sharding.shard_shape((4, 2, 2)) == (1, 1, 2)
    assert out["image_text"].sharding.shard_shape((4, 4)) == (1, 4)
    with refused(ValueError, r"'video'.*rank 4"):
        jax.jit(partition)({"video": jnp.ones((1, 1, 1, 1))})


def test_grains_datasets_are_inputs_whose_position_can_be_saved():
    grain = pytest.importorskip("grain")

    def source():
        dataset = grain.MapDataset.source(list(range(12))).seed(0).shuffle().batch(4)
        return dataset.to_iter_dataset()

    cfg = IteratorInput.default_config().set(name="input", source=source)
    batches = cfg.instantiate(parent=None)
    iterator = iter(batches.dataset())
    first = next(iterator)
    state, rest = iterator.get_state(), [x.tolist() for x in iterator]
    assert len(first) == 4 and len(rest) == 2
    again = iter(batches.dataset())
    again.set_state(state)
    assert [x.tolist() for x in batches.batches(again)] == rest


class _Reader:
    def __init__(self, count=2):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))


register_validator(match_fn=lambda v: isinstance(v, _Reader), validate_fn=lambda v: None)


class _ReaderOf(_Reader):
    def __init__(self, count):
        super().__init__(count)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (_Reader, [0, 1]),
        (_Reader(3), [0, 1, 2]),
        (lambda: [4], [4]),
        (config_for_class(_ReaderOf).set(count=1), [0]),
        (_ReaderOf, r"source is <class .*_ReaderOf'>, which cannot be called without.*'count'"),
        (lambda count: [count], "cannot be called without arguments"),
        (lambda: 3, "source gives a int, expected batches"),
    ],
)
def test_sources_of_an_iterator_input(source, expected):
    cfg = IteratorInput.default_config().set(name="input", source=source)
    data = cfg.instantiate(parent=None)
    if isinstance(expected, list):
        assert list(data.dataset()) == expected
        return
    with refused(ValueError, expected):
        data.dataset()


def test_a_source_of_arrays_gives_a_dict():
    cfg = ArrayInput.default_config().set(name="input", source=lambda: [1], global_batch_size=1)
    with refused(ValueError, "source gives a list, expected a dict of arrays"):
        cfg.instantiate(parent=None).dataset()
    states: Any = (3, {}, {"position": -1}, {"position": "1"}, {"position": True})
    for state in states:
        with refused(ValueError, r"expected {'position': number of batches}"):
            ArrayBatches(DATA, global_batch_size=2).set_state(state)


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
    assert len(batch["x"]) == (physical or 8)  # one for each device at least
    assert batch[DISPATCH_KEY].dtype == bool and batch[DISPATCH_KEY].sum() == logical
    jax.tree.map(
        np.testing.assert_array_equal, jax.jit(each[0].physical_to_logical_batch)(batch), whole
    )


def test_a_batch_of_another_size():
    feed = dispatcher(global_logical_batch_size=2)
    with refused(ValueError, "a batch of 2 examples expected, found 1: 2 over 1 feeds"):
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
    with refused(ValueError, message):
        dispatcher(**{"global_logical_batch_size": 4, "physical_feed_index": 0, **kwargs})


def test_the_part_of_a_process_is_what_its_devices_hold():
    cfg = SpmdInputDispatcher.default_config().set(
        name="d", global_logical_batch_size=8, partition_spec=PartitionSpec("data")
    )
    feed: Any = cfg.instantiate(parent=None)
    with refused(ValueError, "needs a mesh"):
        feed.feed_read_config()
    with jax.set_mesh(Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))):
        assert feed.feed_read_config() == {"num_shards": 1, "shard_index": 0}
        batch = {"x": np.ones(8)}
        assert feed.logical_to_physical_batch(batch) is batch


def test_a_trainer_with_fewer_examples_than_devices(tmp_path):
    """Three examples of a step on two devices: the losses are those of one device."""

    def losses(folder, devices, **kwargs):
        cfg = regression.trainer(steps=2, mesh_shape=(devices, 1)).set(dir=str(folder))
        cfg.input.set(global_batch_size=3, **kwargs)
        return run(cfg, devices=devices)[0]

    padding = InputDispatcher.default_config().set(
        global_logical_batch_size=3, global_physical_batch_size=4
    )
    padded = losses(tmp_path / "two", 2, input_dispatcher=padding)
    assert padded == pytest.approx(losses(tmp_path / "one", 1), rel=1e-5)


class WithSizes(regression.Regression):
    def forward(self, input_batch):
        loss, aux = super().forward(input_batch)
        return loss, {**aux, "sizes": jnp.arange(3)}  # not of the examples


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
    cfg.model = WithSizes.default_config().set(dtype=jnp.float32)
    writer = JsonlWriter.default_config().set(paths=["input", "input/y", "output/aux/.*"])
    cfg.evalers = {"all": SpmdEvaler.default_config().set(input=data, output_writer=writer)}
    trainer = cfg.instantiate(parent=None, devices=jax.devices()[:devices])
    key = jax.random.PRNGKey(0)
    trainer.init(key)
    params, batch = trainer.model_params_for_eval(), samples()
    assert trainer.evalers["all"].input.config.partition_spec == PartitionSpec("data")
    with trainer.mesh_scope():
        _, summaries, _ = trainer.evalers["all"].eval_step(1, prng_key=key, model_params=params)
    [summary] = summaries.values()
    assert float(summary.weight) == 100
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    hidden = np.tanh(batch["x"] @ params["first"]["weight"] + params["first"]["bias"])
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
