# pyright: strict
"""Reads the settings of a constructor call of flax.optim, and tells if public Optax has them."""

import ast
import inspect
from collections.abc import Iterable, Sequence

import libcst as cst

from migration_guide.codemod.reading.tree import keyword_of
from optax_bridge.correspondence import Entry, UnsupportedSetting, Verdict
from optax_bridge.correspondence.recipe import Source


def legacy_arguments(entry: Entry, args: Sequence[cst.Arg]) -> dict[str, cst.Arg] | None:
    """Legacy name -> argument; None if that cannot be told or the call is wrong."""
    names = [hp.legacy for hp in entry.hyper_params]
    if entry.takes_groups:
        fine = all(arg.keyword is None and arg.star != "**" for arg in args)
        return {} if fine else None
    arguments: dict[str, cst.Arg] = {}
    for index, arg in enumerate(args):
        if arg.star or (arg.keyword is None and index >= len(names)):
            return None
        name = keyword_of(arg) or names[index]
        if name not in names or name in arguments:
            return None
        arguments[name] = arg
    required = [hp.legacy for hp in entry.hyper_params if hp.default is inspect.Parameter.empty]
    return arguments if all(name in arguments for name in required) else None


def value(module: cst.Module, arg: cst.Arg) -> object:
    """A literal as its value, which decides between recipes; anything else as its source."""
    text = arg.star + module.code_for_node(arg.value).strip()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return Source(text)


def why_not_optax(
    entry: Entry, module: cst.Module, call: cst.Call, overridden: Iterable[str]
) -> str:
    """Returns why public Optax has no equivalent of a call's result, or ""."""
    arguments = legacy_arguments(entry, call.args)
    if arguments is None:
        return f"{entry.legacy.__name__}'s arguments are not written out"
    settings = entry.defaults() | {key: value(module, arg) for key, arg in arguments.items()}
    settings |= {key: Source(key) for key in overridden if key in settings}
    try:
        _, claim = entry.optax_recipe(settings)
    except UnsupportedSetting as error:
        return str(error).partition(": ")[2].rstrip(".") or str(error)
    return claim.why if claim.verdict is Verdict.DIFFERENT else ""
