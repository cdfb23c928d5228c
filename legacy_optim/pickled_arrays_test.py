"""Pickles of arrays as jax 0.3 and 0.4 wrote them."""

import pickle
import sys
from collections.abc import Iterator

import jax
import numpy as np
import pytest

from legacy_optim.pickled_arrays import read_old_arrays


def _pickled(module: str, name: str) -> bytes:
    """As `__reduce__` of an array had it pickled: the call of a function by its name."""
    fun, args, state = np.arange(3.0, dtype=np.float32).__reduce__()
    inner = pickle.dumps((fun, args, state, {"weak_type": False, "named_shape": {}}), protocol=0)
    assert inner.endswith(b".")
    return f"c{module}\n{name}\n".encode() + inner[:-1] + b"R."


@pytest.fixture
def reading() -> Iterator[None]:
    module = sys.modules["jax._src.array"]
    before = vars(module)["_reconstruct_array"]
    undo = read_old_arrays()
    yield
    undo()
    assert vars(module)["_reconstruct_array"] is before


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("jax._src.device_array", "reconstruct_device_array"),
        ("jax._src.array", "_reconstruct_array"),
    ],
    ids=["0.3", "0.4"],
)
@pytest.mark.usefixtures("reading")
def test_an_old_pickle_is_read(module: str, name: str):
    array = pickle.loads(_pickled(module, name))
    assert isinstance(array, jax.Array)
    assert array.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.usefixtures("reading")
def test_todays_arrays_are_pickled_as_ever():
    data = pickle.dumps(jax.numpy.ones(2))
    read_old_arrays()()  # a second one changes nothing
    assert pickle.loads(data).tolist() == [1.0, 1.0]
