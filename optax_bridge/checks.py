"""Checks of what a user hands in, with errors that name it, what is expected and the remedy."""

import sys
from typing import Any, Literal

import jax

import legacy_optim
from optax_bridge._text import nearest, shown
from optax_bridge.metadata.axis_metadata import is_box
from optax_bridge.metadata.trees import Leaf, Params, PyTree


def is_legacy(
    given: Any, kind: Literal["Optimizer", "OptimizerDef", "ReplicatedOptimizer"]
) -> bool:
    """Whether something is an instance of a class of the old API, without importing the class.

    `legacy_optim.Optimizer` would import them all: 15 ms of the first step of who needs none.
    """
    base = sys.modules.get("legacy_optim.base")  # what nobody has imported has no instances
    return base is not None and isinstance(given, getattr(base, kind))


def check_definition(given: Any, where: str, *, or_transformation: bool = False) -> None:
    """Checks that this is a definition, an instance of a class such as `legacy_optim.Adam`.

    Args:
      given: what the user gave.
      where: the argument's name, for messages.
      or_transformation: whether an Optax transformation is as good.

    Raises:
      TypeError: it is something else; says what was probably meant.
      ValueError: it is a replicated optimizer.
    """
    if is_legacy(given, "ReplicatedOptimizer"):
        raise ValueError(
            "the optimizer is replicated over devices: call optimizer.unreplicate() first, and "
            "average the gradients in the step with jax.lax.pmean, which replicate() did by "
            "itself"
        )
    is_transformation = hasattr(given, "init") and hasattr(given, "update")
    if is_legacy(given, "OptimizerDef") or (
        or_transformation and is_transformation and not isinstance(given, type)
    ):
        return
    expected = "expected a definition, legacy_optim.Adam(learning_rate=1e-3) say, found"
    raise TypeError(f"{where}: {expected} {_found(given)}")


def check_optimizer(given: Any) -> None:
    """Checks that this is a legacy optimizer, parameters and state included, on one device.

    Raises:
      TypeError: it is something else; says what was probably meant.
      ValueError: it is replicated.
    """
    if is_legacy(given, "OptimizerDef"):
        raise TypeError(
            f"optimizer: expected an Optimizer, found a definition, {type(given).__name__}, which "
            "has no parameters: optax_bridge.from_legacy(definition) is the tx= of "
            "TrainState.create"
        )
    if not is_legacy(given, "Optimizer"):
        raise TypeError(
            "optimizer: expected an Optimizer, as definition.create(params) makes, found "
            f"{type(given).__name__}: {shown(given)}"
        )
    check_definition(given.optimizer_def, "optimizer.optimizer_def")
    check_one_copy(given.state.step)


def check_one_copy(step: Leaf) -> None:
    """Checks that a state has one step, not one for each of several devices.

    Raises:
      ValueError: it is replicated.
    """
    shape = getattr(step, "shape", ())
    if shape:
        raise ValueError(
            f"replicated: its step has shape {shape}, one for each device. Unreplicate it first, "
            "flax.jax_utils.unreplicate(...), or step under jax.pmap"
        )


def check_no_text(tree: PyTree, where: str) -> None:
    """Checks that no leaf is text: a name, or a number that was read from a file or a flag.

    Raises:
      TypeError: one is; the message names the leaf.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if isinstance(leaf, str | bytes):
            raise TypeError(
                f"{where}{jax.tree_util.keystr(path)}: expected an array or a number, found "
                f"{type(leaf).__name__} {leaf!r}"
            )


def check_like(tree: PyTree, params: Params, where: str, remedy: str) -> None:
    """Checks that a tree has the structure of parameters, boxes being leaves.

    Raises:
      ValueError: it has not; the message names leaves that one of the two has alone.
    """
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
        found = [
            *([f"no {', '.join(missing[:5])}"] if missing else []),
            *([f"{', '.join(more[:5])} besides"] if more else []),
        ]
        raise ValueError(
            f"{where}: expected a tree like the parameters, found "
            f"{'; '.join(found) or 'other containers'}. {remedy}"
        ) from None


def class_named(text: str) -> str:
    """The legacy class whose name is nearest to a text, whatever its case, or "" for none."""
    names = [
        name
        for name in legacy_optim.__all__
        if isinstance(kind := getattr(legacy_optim, name), type)
        and issubclass(kind, legacy_optim.OptimizerDef)
        and kind is not legacy_optim.OptimizerDef
    ]
    return nearest(text.partition("(")[0].rpartition(".")[2].strip(), names)


def _found(given: Any) -> str:
    if isinstance(given, str):
        name = class_named(given)
        meant = f"; is legacy_optim.{name}(...) meant?" if name else ""
        return f"the text {shown(given)}{meant}"
    if isinstance(given, type):
        home = "legacy_optim." if given.__module__.startswith("legacy_optim") else ""
        return (
            f"the class {given.__name__}, not an instance: call it, {home}{given.__name__}(...), "
            "with its hyper-parameters"
        )
    if is_legacy(given, "Optimizer"):
        return (
            "an Optimizer: its definition is optimizer.optimizer_def, and "
            "TrainState.from_legacy(optimizer) takes it over with parameters, state and step"
        )
    if hasattr(given, "opt_state") and hasattr(given, "tx"):
        return f"a {type(given).__name__}: it is an Optax state already"
    if hasattr(given, "init") and hasattr(given, "update"):
        return (
            "an Optax transformation: that is what stands in its place, e.g. as tx= of "
            "TrainState.create"
        )
    if callable(given):
        name = getattr(given, "__name__", type(given).__name__)
        meant = class_named(name)
        is_meant = f"; is legacy_optim.{meant}(...) meant?" if meant else ""
        return f"the function {name}{is_meant}"
    return f"{type(given).__name__}: {shown(given)}"
