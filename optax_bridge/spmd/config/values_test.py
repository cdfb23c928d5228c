"""REQUIRED, legal values, and configs made from the signatures of functions and classes."""

import copy
import enum
import functools
import operator
import pickle
import re
import types
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import PartitionSpec

from optax_bridge.recorded_test import refused
from optax_bridge.spmd.config import (
    REQUIRED,
    Configurable,
    InvalidConfigValueError,
    RequiredFieldMissingError,
    config_class,
    config_for_class,
    config_for_function,
    maybe_instantiate,
)
from optax_bridge.spmd.config.config_test import Lamp, Pair, Point, Shop, pay, price


class Color(enum.Enum):
    RED = 1


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
        with refused(TypeError, "required field is not set"):
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
    "method": Shop.large,
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
    "in a dataclass": Point(y=b""),
    "in a named tuple": Pair(1, b""),
    "in a pretrained": Pretrained({"a": b""}),
}


def test_illegal_values(subtests: pytest.Subtests):
    for value in ILLEGAL.values():
        with subtests.test(str(value)), pytest.raises(InvalidConfigValueError):
            Lamp.default_config().set(note=value)


def test_functions_and_classes():
    cfg = config_for_function(pay).set(amount=2)
    with refused(RequiredFieldMissingError, r"required field .* extra"):
        cfg.instantiate()
    cfg.set(extra=(5, 6), rest={"note": 1})
    assert cfg.instantiate() == (2, (5, 6), 0, {"note": 1})
    assert cfg.instantiate(amount=9)[0] == 9  # an argument wins
    assert cfg.instantiate(tip=np.float32(1), other=2) == (2, (5, 6), 1, {"note": 1, "other": 2})
    shop = config_for_class(Shop).set(name="a").instantiate(size=4)
    assert (shop.name, shop.size) == ("a", 4)
    assert isinstance(maybe_instantiate(config_for_class(nn.Dense).set(features=3)), nn.Dense)
    config_for_function(optax.sgd).set(learning_rate=0.1).instantiate()
    linear = config_for_class(nnx.Linear).set(in_features=2, out_features=3)
    assert linear.instantiate(rngs=nnx.Rngs(0)).kernel.shape == (2, 3)
    point = config_for_class(Point).set(y=2)
    assert point.clone() == point and point.instantiate() == Point(0, 2)
    assert maybe_instantiate(3) == 3


def test_an_argument_wins_over_the_field_of_keyword_arguments():
    def fn(**kw):
        return kw

    cfg = config_for_function(fn).set(kw={"a": 1, "b": 2})
    assert cfg.instantiate(a=3) == {"a": 3, "b": 2}

    def named(x, **kw):
        return x, kw

    cfg = config_for_function(named).set(x=1, kw={"x": 2})
    with refused(TypeError, r"'x' is a field of its config and in its field 'kw'"):
        cfg.instantiate()


def _anything(init):
    def wrapper(*args, **kwargs):
        init(*args, **kwargs)

    return wrapper


class _BoundByHand:
    def __init__(self, init):
        self.init = init

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self.init, instance)


class _ClassProxy:
    """Stands for a class, as those of wrapt do."""

    def __init__(self, wrapped):
        self.__wrapped__ = wrapped

    @property
    def __class__(self):
        return type(self.__wrapped__)

    def __call__(self, *args, **kwargs):
        return self.__wrapped__(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self.__wrapped__, name)


@pytest.mark.parametrize(
    ("decorate", "decorate_class", "fields"),
    [
        (_anything, None, {"args": (1, 2), "kwargs": {}}),
        (lambda init: functools.wraps(init)(_anything(init)), None, {"x": 1, "y": 2}),
        (_BoundByHand, None, {"x": 1, "y": 2}),
        (_anything, _ClassProxy, {"args": (1, 2), "kwargs": {}}),
        (lambda init: init, _ClassProxy, {"x": 1, "y": 2}),
    ],
    ids=["decorated", "wrapped", "descriptor", "decorated_proxy", "proxy"],
)
def test_the_parameters_of_an_init_that_is_no_plain_function(decorate, decorate_class, fields):
    def init(self, x, y):
        self.sum = x + y

    cls: Any = type("Decorated", (), {"__init__": decorate(init)})
    cls = cls if decorate_class is None else decorate_class(cls)
    cfg = config_for_class(cls)
    assert cfg.keys() == sorted(["klass", *fields])
    assert cfg.set(**fields).instantiate().sum == 3


def test_parameters_named_like_methods():
    def fn(keys, items=2):
        return keys + items

    cfg = config_for_function(fn).set(keys=1)
    assert cfg.clone().instantiate() == 3
    assert str(cfg).splitlines()[1:] == ["items: 2", "keys: 1"]
    assert cfg.to_dict()["keys"] == 1


def test_parameters_that_cannot_be_fields():
    for name in ("fn", "_", "self", "set"):
        names = {}
        exec(f"def f({name}): pass", names)
        with refused(ValueError, f"'{name}' parameter"):
            config_for_function(names["f"])

    def positional_only(x, /):
        return x

    with refused(NotImplementedError, "param kind POSITIONAL_ONLY"):
        config_for_function(positional_only).set(x=1).instantiate()
