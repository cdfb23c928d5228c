import dataclasses
import enum
import json
import os
from collections.abc import Callable
from typing import Any, Optional, Protocol

import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec

from optax_bridge.spmd.config import (
    REQUIRED,
    Configurable,
    InstantiableConfig,
    OverrideError,
    Required,
    apply_overrides,
    config_class,
    config_for_class,
    config_for_function,
    diff,
    from_debug_string,
)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Point:
    x: int = 1
    y: Any = None


class Lamp(Configurable):
    @config_class
    class Config(Configurable.Config):
        watts: int = 40


class Room(Configurable):
    @config_class
    class Config(Configurable.Config):
        sizes: dict = {"w: [": 3, 4: 2.5}  # noqa: RUF012
        lamps: list = [Lamp.default_config()]  # noqa: RUF012
        shape: tuple[int, ...] = (1, 2)
        spec: Any = PartitionSpec("a", None, ("b", "c"))
        color: Color = Color.RED
        door: Optional[Point] = None  # noqa: UP045
        rate: float = 0.1
        opt: Optional[InstantiableConfig] = None  # noqa: UP045
        wide: Required[float] = REQUIRED
        count: Required[int] = REQUIRED
        table: dict = {"a": 1}  # noqa: RUF012
        label: Required[str] = REQUIRED
        dtype: Any = jnp.float32
        limit: float = float("inf")
        kind: Optional[type] = None  # noqa: UP045
        names: dict[str, str] = {}  # noqa: RUF012
        flag: bool = True
        part: Optional[float] = 0.5  # noqa: UP045


def room() -> Any:
    optimizer = config_for_function(optax.adamw).set(learning_rate=1e-3)
    dense = config_for_class(nn.Dense).set(features=3)
    return Room.default_config().set(
        opt=optimizer, lamps=[dense, Lamp.default_config()], shape=(4, 5, 6), door=Point(3, [4])
    )


VALUES = {"color": Color.BLUE, "lamps": [], "label": "it's\n", "kind": jnp.bfloat16}
VALUES["names"] = {"a": "jax.numpy.float32"}


@pytest.mark.parametrize("values", [{}, VALUES])
@pytest.mark.parametrize("like", [None, Room.default_config()])
def test_text_gives_the_config_again(like, values):
    cfg = room().set(**values)
    again = from_debug_string(str(cfg), like=like)
    assert again == cfg
    assert not diff(again, cfg)


class Named(Protocol):
    def __call__(self, name: str) -> str: ...


class Reader(Configurable):
    @config_class
    class Config(Configurable.Config):
        source: Required[Callable[[], dict[str, str]] | InstantiableConfig] = REQUIRED
        named: Named | None = None
        later: "Callable[[str], str] | None" = None
        text: str | Callable[[], str] = "json.dumps"


def test_a_function_reads_back_as_the_function():
    cfg = Reader.default_config().set(source=json.loads, named=os.path.join, later=json.dumps)
    again = from_debug_string(str(cfg))
    functions = (again.source, again.named, again.later, again.text)
    assert functions == (json.loads, os.path.join, json.dumps, "json.dumps")
    with pytest.raises(ValueError, match=r"source: there is no 'json.nothing' to import"):
        from_debug_string(str(cfg).replace("json.loads", "json.nothing"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb", "line 1"),
        ("rate: 1\nrate: 2", "line 2: rate is there twice"),
        ("rate: 1", "neither a klass nor a fn"),
        ("klass: 'nowhere.Room'", "there is no 'nowhere.Room' to import"),
        (f"klass: '{__name__}.Room'\nrat: 1", "did you mean: .rate"),
        (f"klass: '{__name__}.Room'\nrate: __import__('os')", "rate: .* cannot be read back"),
        (f"klass: '{__name__}.Lamp'", "watts is absent"),
    ],
)
def test_text_that_is_no_config(text, message):
    with pytest.raises(ValueError, match=message):
        from_debug_string(text)


def test_diff():
    other = room().set(rate=1, shape=[4, 5])
    assert str(diff(room(), other)).splitlines() == [
        "rate: 0.1 -> 1",
        "shape: 'builtins.tuple' -> 'builtins.list'",
        "shape[2]: 6 -> (absent)",
    ]
    assert diff(room(), room()) == {}
    lamp = Lamp.default_config()
    assert diff(lamp, lamp.clone(watts=40.0)) == {"watts": (40, 40.0)}
    assert set(diff(lamp, room())) == {"watts", *room().keys()} | set(diff(room(), lamp))


OVERRIDES = [
    ("opt.learning_rate=3e-4", "opt.learning_rate", 3e-4),
    ("lamps[0].features=9", "lamps[0].features", 9),
    ("lamps[-2].features=9", "lamps[0].features", 9),
    ("shape[-1]=9", "shape[2]", 9),
    ("shape[-3]=9", "shape[0]", 9),
    ("shape[1]=9", "shape[1]", 9),
    ("sizes['w: [']=7", "sizes['w: [']", 7),
    ("door['x']=7", "door['x']", 7),
    ("color=BLUE", "color", Color.BLUE),
    ("rate=1", "rate", 1.0),
    ("wide=1", "wide", 1.0),
    ("count=8", "count", 8),
    ("part=None", "part", None),
    ("label=12", "label", "12"),
    ("flag=False", "flag", False),
    ("room.limit=10", "limit", 10.0),
    ("spec=P('b')", "spec", PartitionSpec("b")),
    ("dtype=jax.numpy.bfloat16", "dtype", jnp.bfloat16),
    ("kind=jax.numpy.bfloat16", "kind", jnp.bfloat16),
]


def test_overrides(subtests: pytest.Subtests):
    for setting, key, value in OVERRIDES:
        with subtests.test(str(setting)):
            changed = diff(room(), apply_overrides(room(), [setting], root="room"))
            assert list(changed) == [key]
            assert changed[key][1] == value and type(changed[key][1]) is type(value)


def test_override_of_a_whole_tuple():
    assert apply_overrides(room(), ["shape=[7, 8]"]).shape == (7, 8)


UNFIT = [
    ("rat=1", r"rat=1.*has no field rat \(did you mean: \[rate\]\)"),
    ("learning_rate=1", r"did you mean: \[opt.learning_rate\]"),
    ("opt.lerning_rate=1", r"opt has no field lerning_rate \(did you mean: \[learning_rate\]"),
    ("rate=abc", "rate=abc.*expected a float such as 0.1"),
    ("rate=__import__('os')", "expected a float"),
    ("flag=1", "expected a bool"),
    ("shape=4", "expected a tuple"),
    ("color=GREEN", "expected one of"),
    ("klass=int", "text cannot change it"),
    ("rate=None", "got None"),
    ("count=eight", "expected an int, got 'eight'"),
    ("sizes.q=3", "sizes has no 'q'"),
    ("table.a=3", r"set its 'a' by table\['a'\]"),
    ("dtype=jax.numpy.nothing", "name of a class .* such as 'jax.numpy.float32'"),
    ("opt=3", "it is a config"),
    ("lamps[5].features=2", "lamps has 2 elements"),
    ("shape[3]=9", "shape has 3 elements"),
    ("shape[-4]=9", "shape has 3 elements"),
    ("sizes['q']=3", "sizes has no 'q'"),
    ("door['z']=3", "door has no 'z'"),
    ("rate.x=3", "rate has no 'x'"),
    ("rate", "not of the form"),
]


def test_overrides_that_fit_nothing(subtests: pytest.Subtests):
    for setting, message in UNFIT:
        with subtests.test(str(setting)), pytest.raises(OverrideError, match=message):
            apply_overrides(room(), [setting])


@pytest.mark.parametrize("second", ["door['x']=2", "door=None"])
def test_a_key_is_set_once(second):
    with pytest.raises(OverrideError, match="was set by"):
        apply_overrides(room(), ["door['x']=1", second])
