"""Lets an unmodified program of `flax.optim`'s time run on today's JAX, inside this process.

    import legacy_optim
    legacy_optim.install()
    from flax import optim  # the names of flax 0.5.3, on today's JAX

Importing this module changes nothing; `install` does, and `uninstall` undoes it. JAX, Flax and
NumPy are changed when the program imports them, so that what it sets before that still counts.
"""

import importlib
import os
import sys

from legacy_optim import hooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType
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

# Top-level package -> the module with what answers for its names that are gone, beyond what
# `legacy_optim.gone` knows a new name for.
_ANSWERS = {
    "chex": None,
    "flax": "legacy_optim.removed_names",
    "jax": "legacy_optim.removed_names",
    "numpy": "legacy_optim.removed_numpy_names",
    "optax": None,
    "orbax": None,
}

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

# What `legacy_optim` has beyond the `flax.optim` of then: a star import must not bring it.
_NOT_IN_OPTIM = ("DynamicScale", "Traversal", "install", "t_identity", "uninstall")

# Linen's cells that had no `features` then, and a static `initialize_carry`.
CELLS = ("GRUCell", "LSTMCell", "OptimizedLSTMCell")

# Settings of Flax that were otherwise then: `init` returned a FrozenDict, whose `pop("params")`
# returns two values, and `save_checkpoint` wrote one msgpack file, into a relative folder too.
_FLAX_SETTINGS = {"flax_return_frozendict": True, "flax_use_orbax_checkpointing": False}

# Settings of JAX that were otherwise then, and decide numbers. All random numbers depend on
# this one; the others that decide numbers (generator, matmul precision, x64, promotion) have the
# default that they had.
_JAX_SETTINGS = {"jax_threefry_partitionable": False}

_undo: "list[Callable[[], object]]" = []
_defaults: "dict[str, Any]" = {}  # JAX's settings that are put back


def install(*, old_defaults: bool = False) -> None:
    """Makes `flax.optim` and the JAX names of its time answer, in this process.

    `flax.optim` and its submodules are `legacy_optim`; the traversals of `flax.traverse_util` stop
    warning; JAX names that are gone (`jax.tree_map`, `jax.ops.index_update`, ...) answer again.
    A name that JAX or Flax still has is left alone. Linen modules return FrozenDicts and
    `flax.training.checkpoints` writes msgpack, as then. A second call does nothing.

    JAX and Flax are not imported by this: they are changed when the program imports them.

    Args:
      old_defaults: also put back JAX's defaults of that time that decide numbers, where neither the
        environment nor the program says otherwise: `jax_threefry_partitionable=False`.
    """
    if _undo:
        return

    def after(module: "ModuleType") -> None:
        _after_import(module, old_defaults)

    packages = frozenset(_ANSWERS)
    first = hooks.AfterImport(packages, after, _stand_in)
    last = hooks.SayingWhatIsGone(packages, _explanation)
    sys.meta_path.insert(0, first)  # pyright: ignore[reportArgumentType]
    sys.meta_path.append(last)  # pyright: ignore[reportArgumentType]
    _undo.append(lambda: sys.meta_path.remove(first))  # pyright: ignore[reportArgumentType]
    _undo.append(lambda: sys.meta_path.remove(last))  # pyright: ignore[reportArgumentType]
    for name in sorted(sys.modules):
        module = sys.modules[name]
        if name.partition(".")[0] in packages and "._" not in name and module is not None:
            after(module)


def uninstall() -> None:
    """Undoes `install`; without it, does nothing."""
    while _undo:
        _undo.pop()()
    _defaults.clear()


def old_defaults_in_force() -> "dict[str, Any]":
    """JAX's settings that were put back to that time's, and that the program left so."""
    config: Any = getattr(sys.modules.get("jax"), "config", None)
    return {name: value for name, value in _defaults.items() if getattr(config, name) == value}


def _after_import(module: "ModuleType", old_defaults: bool) -> None:
    """Changes a module that has just been imported."""
    from legacy_optim import answering, gone  # not at every start

    name = module.__name__
    if name in gone.owners():
        _undo.append(answering.answer_missing(module, name, _answer, _explanation))
        keywords, first = gone.renamed_keywords(name), gone.functions_by_position(name)
        for function in sorted((keywords.keys() | first.keys()) & vars(module).keys()):
            _undo.append(
                answering.accept_keywords(
                    module, function, keywords.get(function, {}), first.get(function, ())
                )
            )
    if name == "jax":
        from legacy_optim.pickled_arrays import read_old_arrays  # not at every start

        _undo.append(read_old_arrays())
        if old_defaults:
            _defaults.update(_put_back(module, _JAX_SETTINGS))
        _undo.append(answering.answer_missing(module.config, "jax.config", _answer, _explanation))
    elif name == "flax":
        from legacy_optim.logs import without_note_on_tensorflow  # not at every start

        _undo.append(without_note_on_tensorflow())
        _undo.append(answering.answer_missing(module.config, "flax.config", _answer, _explanation))
        _put_back(module, _FLAX_SETTINGS)
        if "optim" not in vars(module):
            for part in ("", *SUBMODULES):
                _add_module(f"flax.optim.{part}".rstrip("."))
    elif name == "flax.linen":
        cells: dict[str, str] = dict.fromkeys(CELLS, "legacy_optim.recurrent")
        _undo.append(answering.override(module, cells))
    elif name == "flax.traverse_util":
        ours = "legacy_optim.traverse_util"
        _undo.append(answering.override(module, {name: ours for name in _TRAVERSALS}))
    if name in _ANSWERS:
        for old in gone.answered_modules(name):
            if not _is_there(old):
                _add_module(old)


def _stand_in(name: str) -> "ModuleSpec | None":
    """Returns the stand-in for a module that exists but cannot be imported."""
    if name != "flax.metrics.tensorboard":
        return None
    from importlib.util import find_spec, spec_from_file_location  # not at every start

    if find_spec("tensorflow") is not None:
        return None
    if find_spec("tensorboardX") is None:
        raise ModuleNotFoundError(
            "flax.metrics.tensorboard needs TensorFlow, which is not installed. The same files are "
            "written without it once tensorboardX is there: pip install tensorboardX",
            name="tensorflow",
        )
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "summary_writer.py")
    return spec_from_file_location(name, file)


def _put_back(module: "ModuleType", settings: "Mapping[str, Any]") -> "dict[str, Any]":
    """Sets settings, where the environment does not say something else; returns those."""
    config: Any = module.config
    done = {}
    for name, value in settings.items():
        if not hasattr(config, name) or name.upper() in os.environ:
            continue
        before = getattr(config, name)

        def undo(name: str = name, before: "Any" = before) -> None:
            config.update(name, before)

        _undo.append(undo)
        config.update(name, value)
        done[name] = value
    return done


def _add_module(name: str) -> None:
    from importlib.machinery import ModuleSpec  # not at every start, nor the next one

    from legacy_optim import answering

    sys.modules[name] = module = answering.Answering(name, _answer, _explanation, _names)
    module.__path__ = []  # a package: the finders are asked for what is below it
    # Programs ask `importlib.util.find_spec("flax.optim")` whether it is there.
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    _undo.append(lambda: sys.modules.pop(name, None))


def _answer(owner: str, name: str) -> "Any":
    """Returns the stand-in for a name of a module or an object, or raises KeyError."""
    from legacy_optim import answering, gone  # not at every start

    full = f"{owner}.{name}"
    if isinstance(sys.modules.get(full), answering.Answering):
        return sys.modules[full]
    if owner == "flax.optim" or owner.startswith("flax.optim."):
        return answering.member(owner.replace("flax.optim", "legacy_optim"), name)
    package = owner.partition(".")[0]
    if hooks.is_being_imported(package):
        raise KeyError(full)
    answers = _ANSWERS[package]
    if answers is not None:
        table = importlib.import_module(answers).NAMES.get(owner, {})
        if name in table:
            return table[name]
    if owner == "jax.config":  # a module then, an object now
        try:
            return object.__getattribute__(sys.modules["jax"].config, name)
        except AttributeError:
            raise KeyError(full) from None
    entry = gone.find(full)
    if entry is None or entry.new is None:
        raise KeyError(full)
    return answering.value(entry.new)


def _names(owner: str) -> list[str]:
    """The names that a module of that time had, as far as they answer."""
    from legacy_optim import gone  # not at every start

    if owner == "flax.optim":
        names: list[str] = importlib.import_module("legacy_optim").__all__
        return [name for name in names if name not in _NOT_IN_OPTIM]
    if owner.startswith("flax.optim."):
        module = importlib.import_module(owner.replace("flax.optim", "legacy_optim"))
        return [name for name in vars(module) if not name.startswith("_")]
    answers = _ANSWERS[owner.partition(".")[0]]
    table = importlib.import_module(answers).NAMES.get(owner, {}) if answers is not None else {}
    return sorted({*table, *gone.names_with_an_equal(owner)})


def _explanation(full: str) -> str | None:
    """Returns an explanation of a name that is gone and unanswered; None if it is not gone."""
    from legacy_optim import gone  # not at every start

    if hooks.is_being_imported(full.partition(".")[0]):
        return None
    if full.startswith("flax.optim."):
        from legacy_optim.new_names import missing_class

        owner, _, name = full.rpartition(".")
        equal = missing_class(name)
        return f"module {owner!r} has no attribute {name!r}{equal}" if equal else None
    entry = gone.find_module(full)
    return entry.message if entry else None


def _is_there(name: str) -> bool:
    """True if a module's file or folder exists; imports no parent package."""
    package, *parts = name.split(".")
    paths = [os.path.join(folder, *parts) for folder in sys.modules[package].__path__]
    return any(os.path.isdir(path) or os.path.isfile(f"{path}.py") for path in paths)
