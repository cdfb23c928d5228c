"""Checks of a user's arguments; errors name the argument, the expectation and the remedy."""

import sys
from typing import TYPE_CHECKING, Any, Literal

import jax

import legacy_optim
from optax_bridge._text import brief, describe, nearest
from optax_bridge.metadata.axis_metadata import is_box
from optax_bridge.metadata.trees import Leaf, Params, PyTree

if TYPE_CHECKING:
    import optax
    from typing_extensions import TypeIs


def is_legacy(
    value: object, kind: Literal["Optimizer", "OptimizerDef", "ReplicatedOptimizer"]
) -> bool:
    """True for an instance of a class of the old API, which need not be imported."""
    base = sys.modules.get("legacy_optim.base")  # a module that is not imported has no instances
    return base is not None and isinstance(value, getattr(base, kind))


def check_optimizer_def(value: object) -> None:
    """Checks for a definition, a transformation with a state like a definition's, or None."""
    if value is not None and not is_transformation(value):
        check_definition(value, "optimizer_def")


def check_definition(value: object, where: str) -> None:
    """Raises TypeError unless this is a definition, such as an instance of `legacy_optim.Adam`."""
    if is_legacy(value, "ReplicatedOptimizer"):
        raise ValueError(
            "the optimizer is replicated over devices: call optimizer.unreplicate() first, and "
            "average the gradients in the step with jax.lax.pmean, as replicate() did by "
            "itself"
        )
    if is_legacy(value, "OptimizerDef"):
        return
    expected = "expected a definition, such as legacy_optim.Adam(learning_rate=1e-3), found"
    raise TypeError(f"{where}: {expected} {_describe(value)}")


def check_optimizer(value: Any) -> None:
    """Checks that this is a legacy optimizer, parameters and state included, on one device."""
    if is_legacy(value, "OptimizerDef"):
        raise TypeError(
            f"optimizer: expected an Optimizer, found a definition, {type(value).__name__}, which "
            "has no parameters: pass optax_bridge.from_legacy(definition) as tx= to "
            "TrainState.create"
        )
    if not is_legacy(value, "Optimizer"):
        raise TypeError(
            "optimizer: expected an Optimizer, as definition.create(params) returns, found "
            f"{describe(value)}"
        )
    check_definition(value.optimizer_def, "optimizer.optimizer_def")
    check_one_copy(value.state.step)


def check_transformation(tx: Any, where: str = "tx") -> None:
    """Raises TypeError unless this is a transformation; for the old API, says how to get one."""
    if is_legacy(tx, "OptimizerDef"):
        raise TypeError(
            f"{where} is {type(tx).__name__}, a definition of the old API. Pass "
            f"{where}=optax_bridge.from_legacy(definition)."
        )
    if is_legacy(tx, "Optimizer"):
        raise TypeError(
            f"{where} is an Optimizer of the old API. TrainState.from_legacy(optimizer) takes it "
            "over with parameters and state; optax_bridge.from_legacy(optimizer.optimizer_def) is "
            "the transformation alone."
        )
    if is_transformation(tx):
        return
    remedy = f": call it, {getattr(tx, '__name__', type(tx).__name__)}(...)" if callable(tx) else ""
    if isinstance(tx, type) and issubclass(tx, legacy_optim.OptimizerDef):
        remedy = (
            f" of the old API: optax_bridge.from_legacy(legacy_optim.{tx.__name__}(...)) makes one"
        )
    raise TypeError(f"{where}: expected an Optax transformation, found {describe(tx)}{remedy}")


def is_transformation(value: object) -> "TypeIs[optax.GradientTransformation]":
    """True for a transformation, which no legacy definition is."""
    is_instance = not isinstance(value, type)
    return is_instance and hasattr(value, "init") and hasattr(value, "update")


def check_one_copy(step: Leaf) -> None:
    """Checks that a state has one step, not one for each of several devices."""
    shape = getattr(step, "shape", ())
    if shape:
        raise ValueError(
            f"replicated: its step has shape {shape}, one for each device. Unreplicate it first, "
            "flax.jax_utils.unreplicate(...), or step under jax.pmap"
        )


def check_no_text(tree: PyTree, where: str) -> None:
    """Checks that no leaf is text: a name, or a number that was read from a file or a flag."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if isinstance(leaf, str | bytes):
            raise TypeError(
                f"{where}{jax.tree_util.keystr(path)}: expected an array or a number, found "
                f"{type(leaf).__name__} {leaf!r}"
            )


def check_like(tree: PyTree, params: Params, where: str, remedy: str) -> None:
    """Checks that a tree has the structure of parameters, boxes being leaves."""
    try:
        jax.tree.structure(params, is_leaf=is_box).flatten_up_to(tree)
    except (ValueError, TypeError):
        paths = [
            {
                jax.tree_util.keystr(path)
                for path, _ in jax.tree_util.tree_leaves_with_path(t, is_leaf=is_box)
            }
            for t in (params, tree)
        ]
        missing, more = sorted(paths[0] - paths[1]), sorted(paths[1] - paths[0])
        differences = [f"no {', '.join(missing[:5])}"] if missing else []
        differences += [f"{', '.join(more[:5])} more"] if more else []
        raise ValueError(
            f"{where}: expected a tree like the parameters, found "
            f"{'; '.join(differences) or 'other containers'}. {remedy}"
        ) from None


def class_named(text: str) -> str:
    """The legacy class whose name is nearest to a string, in any case, or ""."""
    names = [
        name
        for name in legacy_optim.__all__
        if isinstance(kind := getattr(legacy_optim, name), type)
        and issubclass(kind, legacy_optim.OptimizerDef)
        and kind is not legacy_optim.OptimizerDef
    ]
    return nearest(text.partition("(")[0].rpartition(".")[2].strip(), names)


def _describe(value: object) -> str:
    if isinstance(value, str):
        name = class_named(value)
        meant = f"; is legacy_optim.{name}(...) meant?" if name else ""
        return f"the string {brief(value)}{meant}"
    if isinstance(value, type):
        home = "legacy_optim." if value.__module__.startswith("legacy_optim") else ""
        return (
            f"{describe(value)}, not an instance: call it, {home}{value.__name__}(...), with its "
            "hyper-parameters"
        )
    if is_legacy(value, "Optimizer"):
        return (
            "an Optimizer: its definition is optimizer.optimizer_def, and "
            "TrainState.from_legacy(optimizer) takes it over with parameters, state and step"
        )
    if hasattr(value, "opt_state") and hasattr(value, "tx"):
        return f"a {type(value).__name__}: it is already an Optax state"
    if is_transformation(value):
        return "an Optax transformation: use it in its place, e.g. as tx= of TrainState.create"
    meant = class_named(value.__name__) if callable(value) and hasattr(value, "__name__") else ""
    return describe(value) + (f"; is legacy_optim.{meant}(...) meant?" if meant else "")
