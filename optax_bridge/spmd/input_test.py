from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from optax_bridge.spmd.config import config_for_class, register_validator
from optax_bridge.spmd.input import (
    ArrayBatches,
    ArrayInput,
    IteratorInput,
    host_to_global_array,
    partition_by_path_rank,
)
from optax_bridge.spmd.mesh import mesh_in_scope
from optax_bridge.spmd.trees import TensorSpec

DATA = {"x": np.arange(10), "y": np.arange(10) * 2.0}


@pytest.fixture
def mesh():
    with mesh_in_scope(Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))) as scope:
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
    with pytest.raises(ValueError, match=message):
        ArrayBatches(arrays, global_batch_size=size, process_count=count)


def test_a_batch_lies_along_the_devices_and_then_as_it_is_wanted(mesh):
    cfg = ArrayInput.default_config().set(
        name="input",
        source=lambda: {"x": np.arange(16.0).reshape(8, 2)},
        global_batch_size=8,
        partition_spec=PartitionSpec("data"),
    )
    batches = cfg.instantiate(parent=None)
    host = next(batches.batches(batches.dataset()))
    assert batches.partition_for(host) == PartitionSpec(("data", "model"))
    read = host_to_global_array(host, partition=batches.partition_for(host))
    assert read["x"].sharding.shard_shape((8, 2)) == (1, 2)
    laid_out = jax.jit(lambda b: jax.tree.map(jnp.sin, batches.dispatch_global_batch(b)))(read)
    assert laid_out["x"].sharding.shard_shape((8, 2)) == (2, 2)
    assert batches.element_spec() == {
        "x": TensorSpec((8, 2), np.dtype("float32"), PartitionSpec(("data", "model")))
    }
    assert batches.partition_for({"x": np.ones((4, 2))}) == PartitionSpec("data")
    with pytest.raises(ValueError, match=r"'x' has 6 examples.*over 4 devices"):
        batches.partition_for({"x": np.ones((6, 2))})


def test_partitions_by_path_and_rank(mesh):
    rules: Any = {
        ("image", None): PartitionSpec("data", "model"),
        (None, 2): PartitionSpec("data"),
        (None, 1): PartitionSpec.UNCONSTRAINED,
    }
    partition = partition_by_path_rank(rules)
    batch = {"image": jnp.ones((4, 2, 2)), "text": jnp.ones((4, 3)), "label": jnp.ones(4)}
    out = jax.jit(partition)(batch)
    assert out["image"].sharding.shard_shape((4, 2, 2)) == (1, 1, 2)
    assert out["text"].sharding.shard_shape((4, 3)) == (1, 3)
    with pytest.raises(ValueError, match=r"'video'.*rank 4"):
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
    with pytest.raises(ValueError, match=expected):
        data.dataset()


def test_a_source_of_arrays_gives_a_dict():
    cfg = ArrayInput.default_config().set(name="input", source=lambda: [1], global_batch_size=1)
    with pytest.raises(ValueError, match="source gives a list, expected a dict of arrays"):
        cfg.instantiate(parent=None).dataset()
    states: Any = (3, {}, {"position": -1}, {"position": "1"}, {"position": True})
    for state in states:
        with pytest.raises(ValueError, match=r"expected {'position': number of batches}"):
            ArrayBatches(DATA, global_batch_size=2).set_state(state)
