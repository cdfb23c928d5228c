import dataclasses
import enum
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional, Protocol

import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec

from optax_bridge.recorded_test import assert_recorded, refused
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
    with refused(ValueError, r"source: there is no 'json.nothing' to import"):
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
    with refused(ValueError, message):
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


def outcome(setting: str) -> list[str]:
    """What a setting changes, or what is said of it."""
    try:
        return str(diff(room(), apply_overrides(room(), [setting], root="room"))).splitlines()
    except OverrideError as error:
        return str(error).splitlines()


def test_settings_and_what_becomes_of_them(subtests: pytest.Subtests):
    """`RECORD=1 python -m pytest optax_bridge/spmd/config/reading_test.py` records it again."""
    file = Path(__file__).with_name("testdata") / "settings.json"
    for setting in json.loads(file.read_text()):
        with subtests.test(setting):
            assert_recorded(file, setting, outcome(setting))


@pytest.mark.parametrize("second", ["door['x']=2", "door=None"])
def test_a_key_is_set_once(second):
    with refused(OverrideError, "was set by"):
        apply_overrides(room(), ["door['x']=1", second])
