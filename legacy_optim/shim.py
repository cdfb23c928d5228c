"""Lets an unmodified program of `flax.optim`'s time run on today's JAX, inside this process.

    import legacy_optim
    legacy_optim.install()
    from flax import optim  # the names of flax 0.5.3, on today's JAX

Importing this module changes nothing; `install` does, and `uninstall` undoes it.
"""

import collections
import functools
import importlib
import importlib.abc
import importlib.util
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# The modules of flax.optim in flax 0.5.3.
SUBMODULES = (
    "adabelief",
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "base",
    "dynamic_scale",
    "lamb",
    "lars",
    "momentum",
    "rmsprop",
    "sgd",
    "weight_norm",
)

# Names that flax still has, but that warn of their end whenever they are used.
_TRAVERSALS = (
    "ModelParamTraversal",
    "Traversal",
    "TraverseAttr",
    "TraverseCompose",
    "TraverseEach",
    "TraverseFilter",
    "TraverseId",
    "TraverseItem",
    "TraverseMerge",
    "TraverseTree",
    "t_identity",
)

# Settings of Flax that were otherwise then: `init` returned a FrozenDict, whose `pop("params")`
# returns two values, and `save_checkpoint` wrote one msgpack file, into a relative folder too.
_FLAX_SETTINGS = {"flax_return_frozendict": True, "flax_use_orbax_checkpointing": False}

# Files whose frames are never "where the program used a name".
_OWN = ("legacy_optim", "importlib", "<frozen importlib")


@dataclass(frozen=True, order=True)
class Use:
    """Where a program used an old name.

    Attributes:
      name: dotted, e.g. `flax.optim.Adam`.
      file: of the line that used it.
      line: its number, from 1.
    """

    name: str
    file: str
    line: int


_uses: collections.Counter[Use] = collections.Counter()
_undo: list[Callable[[], object]] = []


def install() -> None:
    """Makes `flax.optim` and the JAX names of its time answer, in this process.

    `flax.optim` and its submodules are `legacy_optim`; the traversals of `flax.traverse_util` stop
    warning; JAX names that are gone (`jax.tree_map`, `jax.ops.index_update`, ...) answer again.
    A name that JAX or Flax still has is left alone. Linen modules return FrozenDicts and
    `flax.training.checkpoints` writes msgpack, as then. A second call does nothing.
    """
    if _undo:
        return
    import flax
    import flax.traverse_util

    from legacy_optim import removed_names

    legacy = importlib.import_module("legacy_optim")
    parts = {
        name: _Answering(f"flax.optim.{name}", importlib.import_module(f"legacy_optim.{name}"))
        for name in SUBMODULES
    }
    package = _Answering("flax.optim", legacy, parts)
    package.__path__ = []  # what makes it a package
    if not hasattr(flax, "optim"):
        _set_module("flax.optim", package)
        for name, part in parts.items():
            _set_module(f"flax.optim.{name}", part)
        _answer_missing(flax, {"optim": package})
    ours = importlib.import_module("legacy_optim.traverse_util")
    _override(flax.traverse_util, {name: getattr(ours, name) for name in _TRAVERSALS})
    for name, table in removed_names.NAMES.items():
        if importlib.util.find_spec(name) is not None:
            _answer_missing(importlib.import_module(name), table)
    finder = _SayingWhatIsGone(removed_names.GONE)
    sys.meta_path.insert(0, finder)
    _undo.append(functools.partial(sys.meta_path.remove, finder))
    for name, source in removed_names.MODULES.items():
        if not _is_there(name):
            _set_module(name, _Answering(name, _source(source)))
    for name, value in _FLAX_SETTINGS.items():
        if hasattr(flax.config, name):
            _undo.append(functools.partial(flax.config.update, name, getattr(flax.config, name)))
            flax.config.update(name, value)


def uninstall() -> None:
    """Undoes `install`; without it, does nothing."""
    while _undo:
        _undo.pop()()


def uses() -> list[tuple[Use, int]]:
    """The old names that were used since `install`: where, and how many times, sorted."""
    return sorted(_uses.items())


def forget_uses() -> None:
    """Starts the list of `uses` anew."""
    _uses.clear()


def _note(name: str) -> None:
    """Counts a use at the innermost frame that is not this package's or the import system's."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        module, file = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
        if not str(module).startswith(_OWN) and not file.startswith(_OWN):
            _uses[Use(name, file, frame.f_lineno)] += 1
            return
        frame = frame.f_back


class _Answering(types.ModuleType):
    """A module under an old name whose attributes are those of another one."""

    def __init__(self, name: str, source: Any, parts: Mapping[str, Any] | None = None):
        super().__init__(name, getattr(source, "__doc__", None))
        self.__dict__["_answering_source"] = source
        self.__dict__["_answering_parts"] = dict(parts or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._answering_parts:
            return self._answering_parts[name]
        try:
            value = getattr(self._answering_source, name)
        except AttributeError:
            raise AttributeError(
                f"module {self.__name__!r} never had {name!r}, or it has no equal today"
            ) from None
        _note(f"{self.__name__}.{name}")
        return value

    def __dir__(self) -> list[str]:
        return sorted({*self._answering_parts, *dir(self._answering_source)})


def _override(module: types.ModuleType, table: Mapping[str, Any]) -> None:
    """Names of a module that answer with something else, and are noted, from now on."""

    def read(self: types.ModuleType, name: str) -> Any:
        if name in table:
            _note(f"{module.__name__}.{name}")
            return table[name]
        return types.ModuleType.__getattribute__(self, name)

    _set_class(module, {"__getattribute__": read})


def _answer_missing(module: types.ModuleType, table: Mapping[str, Any]) -> None:
    """Names that answer where the module itself raises AttributeError; nothing else is slower."""
    gone = importlib.import_module("legacy_optim.removed_names").GONE

    def read(self: types.ModuleType, name: str) -> Any:
        if table.get(name) is None:
            said = gone.get(f"{self.__name__}.{name}")
            raise AttributeError(said or f"module {self.__name__!r} has no attribute {name!r}")
        _note(f"{module.__name__}.{name}")
        return table[name]

    _set_class(module, {"__getattr__": read})


class _SayingWhatIsGone(importlib.abc.MetaPathFinder):
    """Fails to import some names, and says why and what to do.

    Args:
      gone: name -> what to say.
    """

    def __init__(self, gone: Mapping[str, str]):
        self._gone = gone

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        """See the base class.

        Raises:
          ImportError: the name is one of those.
        """
        if fullname in self._gone:
            raise ImportError(self._gone[fullname], name=fullname)


def _set_class(module: types.ModuleType, members: dict[str, Any]) -> None:
    before = type(module)
    module.__class__ = type(before.__name__, (before,), members)
    _undo.append(functools.partial(setattr, module, "__class__", before))


def _set_module(name: str, module: types.ModuleType) -> None:
    sys.modules[name] = module
    _undo.append(functools.partial(sys.modules.pop, name, None))


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # its parent is no package
        return False


def _source(source: str | Mapping[str, Any]) -> Any:
    if isinstance(source, str):
        return importlib.import_module(source)
    return types.SimpleNamespace(**source)
