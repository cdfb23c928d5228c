import copy
import dataclasses
import math
import re
import sys
from typing import Any, Generic, NamedTuple, TypeVar

import attr
import pytest

from optax_bridge.recorded_test import refused
from optax_bridge.spmd.config import (
    REQUIRED,
    ConfigBase,
    ConfigModifier,
    Configurable,
    InstantiableConfig,
    InvalidConfigClassError,
    InvalidConfigNameError,
    InvalidConfigValueError,
    MissingConfigClassDecoratorError,
    NonConfigFieldError,
    Required,
    RequiredFieldMissingError,
    RequiredFieldValue,
    UnknownFieldError,
    config_class,
    config_for_class,
    config_for_function,
    maybe_set_config,
    register_validator,
    with_overrides,
)

T = TypeVar("T")


class Lamp(Configurable):
    @config_class
    class Config(Configurable.Config):
        watts: int = 40
        shade: Required[str] = REQUIRED
        tags: list = ["hall", None]  # noqa: RUF012
        note: Any = None

    def __init__(self, cfg, *, room=None):
        super().__init__(cfg)
        self.room = room


class Room(Configurable):
    @config_class
    class Config(Configurable.Config):
        lamp: Lamp.Config = Lamp.default_config()
        sizes: dict = {"w": 3, 4: 2.5}  # noqa: RUF012
        empty: list = []  # noqa: RUF012


def pay(amount, *extra, tip=0, **rest):
    return amount, extra, tip, rest


def price(amount, tip=0):
    return amount + tip


class Shop:
    def __init__(self, name, *, size: int = 3):
        self.name, self.size = name, size

    @classmethod
    def large(cls, name):
        return cls(name, size=9)


@dataclasses.dataclass
class Point:
    x: int = 0
    y: Any = None
    hidden: int = dataclasses.field(default=1, metadata={"skip_serialization": True})


class Pair(NamedTuple):
    left: Any
    right: Any


def room() -> Any:
    cfg = Room.default_config()
    cfg.lamp.shade = "red"
    return cfg


def test_text_of_configs():
    assert str(Lamp.default_config()) == (
        f"klass: '{__name__}.Lamp'\ntags[0]: 'hall'\ntags[1]: None\nwatts: 40"
    )
    assert str(room()).splitlines()[1:] == [
        f"lamp.klass: '{__name__}.Lamp'",
        "lamp.shade: 'red'",
        "lamp.tags[0]: 'hall'",
        "lamp.tags[1]: None",
        "lamp.watts: 40",
        "sizes['w']: 3",
        "sizes[4]: 2.5",
    ]
    cfg = config_for_function(pay).set(amount=2)
    assert str(cfg) == f"amount: 2\nfn: '{__name__}.pay'\ntip: 0"
    assert cfg.debug_string(kv_separator="=", field_separator=" ", omit_default_values=()) == (
        f"amount=2 extra=REQUIRED fn='{__name__}.pay' rest=REQUIRED tip=0"
    )


def test_names_of_config_classes():
    @config_class
    class Local(ConfigBase):
        x: int = 1

    name = f"{__name__}.test_names_of_config_classes.<locals>.Local"
    assert str(type(Local())) == f"<class '{__name__}.config_class({name})'>"
    assert type(config_for_function(pay)).__name__ == f"config_for_function({__name__}.pay)"
    assert type(config_for_class(Shop)).__name__ == f"config_for_class({__name__}.Shop)"
    assert attr.fields(Local).x.default == 1
    assert attr.fields_dict(type(config_for_class(Shop)))["size"].type is int


def _body(code: str) -> None:
    names = dict(globals())
    lines = "\n  ".join(code.split(";"))
    exec(f"@config_class\nclass C(ConfigBase):\n  {lines}\nC()", names)


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("x = 1", NonConfigFieldError, "x"),
        ("f = lambda self: 1", NonConfigFieldError, "f"),
        ("g = price", NonConfigFieldError, "g"),
        ("p = property(price)", NonConfigFieldError, "p"),
        ("def new(self): pass", NonConfigFieldError, "new"),
        ("Bad: int = 1", InvalidConfigNameError, "Bad"),
        ("badName: int = 1", InvalidConfigNameError, "badName"),
        ("x: Any = b''", InvalidConfigValueError, "bytes"),
        ("x: int", TypeError, "x"),
    ],
)
def test_bodies_that_are_refused(code, error, message):
    with refused(error, message):
        _body(code)


def test_methods_of_the_base_may_be_overridden():
    @config_class
    class Lenient(Configurable.Config):
        x: int = 0

        def set(self, **values):
            return super().set(**{k: v for k, v in values.items() if k in self})

    assert Lenient(klass=int).clone(x=3, y=4).x == 3


def test_classes_that_are_refused_when_a_config_is_made():
    @config_class
    class C(ConfigBase):
        x: int = 0

    C.extra = 3  # type: ignore[attr-defined]
    with refused(NonConfigFieldError, "extra"):
        C()

    class Plain(ConfigBase):
        pass

    with refused(MissingConfigClassDecoratorError, "@config_class"):
        Plain()
    with refused(InvalidConfigClassError, "ConfigBase"):
        config_class(int)
    for call in (lambda c: c(1), lambda c: c(klass=int, z=1), lambda c: c()):
        with pytest.raises(TypeError):
            call(Lamp.Config)


def test_inherited_fields_and_generic_configs():
    @config_class
    class A(ConfigBase):
        x: int = 1
        y: int = 2

    @config_class
    class B(A):
        x: str = "b"  # pyright: ignore[reportIncompatibleVariableOverride]

    assert (B().x, B().y, B().keys()) == ("b", 2, ["x", "y"])
    assert attr.fields(B).x.type is str

    @config_class
    class C(InstantiableConfig[T], Generic[T]):
        x: int = 1

    assert C[int](x=2).x == 2


def test_registered_validators_make_defaults_legal(monkeypatch):
    validation = sys.modules["optax_bridge.spmd.config.values"]
    monkeypatch.setattr(validation, "_VALIDATORS", list(validation._VALIDATORS))

    @config_class
    class C(ConfigBase):
        x: complex = 1j

    with pytest.raises(InvalidConfigValueError):
        C()
    seen = []
    register_validator(match_fn=lambda v: isinstance(v, complex), validate_fn=seen.append)
    assert C().x == 1j and seen == [1j]


def test_assignment_is_by_value():
    tags = ["a"]
    cfg = Lamp.default_config().set(tags=tags)
    tags.append("b")
    assert cfg.tags == ["a"]
    Lamp.default_config().tags.append("c")
    assert Lamp.default_config().tags == ["hall", None]


def test_what_is_called_is_not_copied():
    class Proxy:
        def __call__(self, x):
            return x

        def __deepcopy__(self, memo):
            raise TypeError("no")

    proxy = Proxy()
    cfg = Room.default_config().set(lamp=config_for_function(proxy).set(x=2)).clone()
    assert cfg.lamp.fn is proxy
    assert copy.deepcopy(cfg).lamp.instantiate() == 2


def test_set_is_all_or_nothing():
    cfg = Lamp.default_config()
    with pytest.raises(UnknownFieldError):
        cfg.set(watts=1, shades="x")
    with pytest.raises(InvalidConfigValueError):
        cfg.set(watts=1, shade=b"")
    assert cfg == Lamp.default_config()
    assert cfg.set(watts=1) is cfg


def test_unknown_names():
    cfg = Lamp.default_config()
    with refused(AttributeError, re.escape("shades (did you mean: [shade])")):
        _ = cfg.shades
    with refused(UnknownFieldError, re.escape("shades (did you mean: [shade])")):
        cfg.shades = 1
    keys = "zz (keys are ['klass', 'note', 'shade', 'tags', 'watts'])"
    with refused(UnknownFieldError, re.escape(keys)):
        cfg.set(zz=1)


def test_getattr_may_supply_defaults():
    @config_class
    class C(Configurable.Config):
        x: int = 1

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except KeyError:
                if name == "y":
                    return 7
                raise

    assert C(klass=int).y == 7
    assert not hasattr(C(klass=int), "z")


def test_fields_of_a_config():
    cfg = room()
    assert "lamp" in cfg and "lam" not in cfg and len(cfg) == 4
    assert cfg.keys() == ["empty", "klass", "lamp", "sizes"]
    assert [name for name, _ in cfg.items()] == cfg.keys()
    assert cfg.get_recursively([]) is cfg
    assert cfg.get_recursively(["lamp", "shade"]) == "red"
    cfg.set_recursively(["lamp", "shade"], value="blue")
    assert cfg.lamp.shade == "blue"
    with refused(AttributeError, "shades"):
        cfg.set_recursively(["lamp", "shades"], value=1)
    with refused(ValueError, "empty"):
        cfg.set_recursively([], value=1)


def test_equality_and_copies():
    cfg = room()
    same = [copy.deepcopy(cfg), copy.copy(cfg), cfg.clone()]
    assert all(other == cfg and other is not cfg for other in same)
    assert all(other.lamp is not cfg.lamp for other in same)
    assert cfg != cfg.clone(empty=[1])
    with pytest.raises(TypeError):
        hash(cfg)
    assert config_for_class(Shop) == config_for_class(Shop)
    assert config_for_function(Shop.large) == config_for_function(Shop.large)


def test_visit():
    entered, seen, left = [], [], []

    def enter(key, value, default):
        entered.append(key)
        return None if key == "lamp" else default

    cfg = room().set(empty=[Point(1, [2]), Pair("a", {})])
    cfg.visit(lambda key, _: seen.append(key), enter, lambda key, _: left.append(key))
    elements = ["empty[0]['x']", "empty[0]['y'][0]", "empty[0]['hidden']", "empty[1]['left']"]
    assert seen == [*elements, "klass", "lamp", "sizes['w']", "sizes[4]"]
    containers = [
        "empty[0]['y']",
        "empty[0]",
        "empty[1]['right']",
        "empty[1]",
        "empty",
        "sizes",
        "",
    ]
    assert left == containers
    assert entered[:4] == ["", "empty", "empty[0]", "empty[0]['x']"]
    assert sorted(entered) == sorted(seen + left)


def test_flat_and_nested_forms():
    cfg = room().set(empty=[Point(1), Pair("a", price)])
    flat = cfg.to_flat_dict(omit_default_values=(None,))
    assert [key for key in flat if key.startswith("empty")] == [
        "empty[0]['x']",
        "empty[1]['left']",
        "empty[1]['right']",
    ]
    assert "lamp.note" not in flat and "lamp.note" in cfg.to_flat_dict(omit_default_values=())
    assert cfg.to_dict() == {
        "empty": [{"x": 1, "y": None, "hidden": 1}, {"left": "a", "right": f"{__name__}.price"}],
        "klass": f"{__name__}.Room",
        "lamp": {
            "klass": f"{__name__}.Lamp",
            "note": None,
            "shade": "red",
            "tags": ["hall", None],
            "watts": 40,
        },
        "sizes": {"w": 3, 4: 2.5},
    }


def test_instantiate():
    with refused(RequiredFieldMissingError, r"required field .* shade"):
        Lamp.default_config().instantiate()
    lamp = Lamp.default_config().set(shade="red").instantiate(room="hall")
    assert (lamp.room, lamp.config.watts) == ("hall", 40)
    lamp.config.watts = 1
    assert lamp.config.watts == 40
    assert repr(lamp) == repr(lamp.config)
    assert isinstance(room().instantiate().config.lamp, Lamp.Config)


def test_helpers():
    cfg = maybe_set_config(Lamp.default_config(), watts=1, nothing=2)
    assert cfg.watts == 1
    assert with_overrides(Lamp.default_config, watts=3)().watts == 3
    assert ConfigModifier.default_config().instantiate()(cfg) is cfg
    assert isinstance(cfg.shade, RequiredFieldValue)
    assert math.isinf(Lamp.default_config().set(note=math.inf).note)
