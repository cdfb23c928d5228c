import copy
import dataclasses
import enum
import functools
import operator
import pickle
import re
import types
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from optax_bridge.spmd.config import REQUIRED, Configurable, InvalidConfigValueError, config_class


class Lamp(Configurable):
    @config_class
    class Config(Configurable.Config):
        note: Any = None

    @classmethod
    def made(cls):
        return cls


def price(amount, tip=0):
    return amount + tip


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: Any = 0


class Pair(NamedTuple):
    left: Any
    right: Any


class Pretrained:
    def __init__(self, values):
        self.values = values

    @classmethod
    def from_pretrained(cls):
        return cls(None)

    def to_dict(self):
        return self.values


OPERATIONS = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv),
    *(operator.mod, operator.pow, operator.lt, operator.le, operator.gt, operator.ge),
]
OPERATIONS = [lambda v, o=o: o(v, 1) for o in OPERATIONS] + [
    *(lambda v, o=o: o(1, v) for o in OPERATIONS),
    *(operator.neg, operator.pos, abs, iter, len, int, float),
    *(lambda v: v[0], lambda v: v.__setitem__(0, 1), lambda v: 1 in v, lambda v: v()),
]


def test_required_is_one_object_and_refuses_to_be_used():
    for operation in OPERATIONS:
        with pytest.raises(TypeError, match="required field is not set"):
            operation(REQUIRED)
    assert str(REQUIRED) == repr(REQUIRED) == "REQUIRED"
    assert not REQUIRED
    assert not hasattr(REQUIRED, "anything")
    assert REQUIRED == REQUIRED and REQUIRED != 0 and hash(REQUIRED) is not None
    for same in (
        copy.copy(REQUIRED),
        copy.deepcopy(REQUIRED),
        pickle.loads(pickle.dumps(REQUIRED)),
    ):
        assert same is REQUIRED


LEGAL = {
    "none": None,
    "class": int,
    "function": price,
    "builtin": len,
    "method": Lamp.made,
    "bool": True,
    "float": 1.5,
    "numpy float": np.float64(1.5),
    "enum": Color.RED,
    "nested": [1, (2, {"a": None})],
    "dataclass": Point(),
    "named tuple": Pair(1, "a"),
    "pretrained": Pretrained({"a": 1}),
    "dtype": np.dtype("float32"),
    "spec": PartitionSpec("data", None),
    "relu": jax.nn.relu,
    "sigmoid": [jax.nn.sigmoid, {"a": jax.nn.relu}],
    "frozen": types.MappingProxyType({"a": 1}),
    "config": Lamp.default_config(),
    "config class": Lamp.Config,
}


def test_legal_values(subtests: pytest.Subtests):
    for value in LEGAL.values():
        with subtests.test(str(value)):
            cfg = Lamp.default_config().set(note=value)
            if not isinstance(value, Pretrained):
                assert cfg == cfg.clone() == copy.deepcopy(cfg)


def test_a_dtype_is_not_left_out():
    @config_class
    class Typed(Configurable.Config):
        dtype: Any = np.dtype("float64")

    assert "dtype: dtype('float64')" in str(Typed(klass=int))


ILLEGAL = {
    "array": np.zeros(2),
    "jax array": jax.numpy.zeros(2),
    "scalar": np.float32(1),
    "bytes": b"",
    "complex": 1j,
    "set": {1},
    "range": range(2),
    "pattern": re.compile("a"),
    "partial": functools.partial(price, 1),
    "jitted": jax.jit(price),
    "object": object(),
    "in a list": [1, [b""]],
    "in a dict": {"a": b""},
    "in a dataclass": Point(b""),
    "in a named tuple": Pair(1, b""),
    "in a pretrained": Pretrained({"a": b""}),
}


def test_illegal_values(subtests: pytest.Subtests):
    for value in ILLEGAL.values():
        with subtests.test(str(value)), pytest.raises(InvalidConfigValueError):
            Lamp.default_config().set(note=value)
