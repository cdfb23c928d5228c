# pyright: strict
"""The call that takes the place of a constructor call of flax.optim, as a person would write it.

The program's own arguments stay in sight and, where the new function has them in the same place, by
position. A default is written out only where the new function has another one.
"""

import functools
import inspect
from collections.abc import Mapping

import libcst as cst

from migration_guide.codemod.reading.tree import comments, keyword, with_keyword
from migration_guide.codemod.writing.context import Context
from optax_bridge.correspondence import Call, Entry
from optax_bridge.correspondence.recipe import Setting, Source, render, resolve


def exact_template(entry: Entry) -> Call:
    """This project's transformation with a placeholder for each setting."""
    return Call(entry.port, (), {hp.port: Setting(hp.legacy) for hp in entry.hyper_params})


def without_defaults(
    entry: Entry, template: Call, settings: Mapping[str, object], arguments: Mapping[str, cst.Arg]
) -> Call:
    """A recipe with its settings, without the defaults of its functions."""
    kwargs: dict[str, object] = {}
    parameters = _parameters(entry, template.target)
    for key, value in template.kwargs.items():
        name = value.name if isinstance(value, Setting) else ""
        new = settings[name] if name else _inner(entry, value, settings, arguments)
        if name in arguments or key not in parameters or not _is_same(new, parameters[key]):
            kwargs[key] = new
    args = [_inner(entry, arg, settings, arguments) for arg in template.args]
    positional = [name for name, arg in arguments.items() if arg.keyword is None]
    for key in list(parameters)[len(args) :]:
        value = template.kwargs.get(key)
        name = positional[len(args)] if len(args) < len(positional) else ""
        if key not in kwargs or value != Setting(name):
            break
        args.append(kwargs.pop(key))
    return Call(template.target, tuple(args), kwargs)


def _inner(
    entry: Entry, node: object, settings: Mapping[str, object], arguments: Mapping[str, cst.Arg]
) -> object:
    if isinstance(node, Call):
        return without_defaults(entry, node, settings, arguments)
    return settings[node.name] if isinstance(node, Setting) else node


def _parameters(entry: Entry, function: str) -> Mapping[str, object]:
    if function == entry.port:
        return {hp.port: hp.default for hp in entry.hyper_params}
    return parameters_of(function)


def _is_same(value: object, default: object) -> bool:
    """True if a setting is known to be a function's default."""
    if isinstance(value, Source | Call) or isinstance(default, type):
        return value is default
    return bool(value == default)


def in_place(
    context: Context,
    updated: cst.Call,
    template: Call,
    recipe: Call,
    old_arguments: Mapping[str, cst.Arg],
) -> cst.Call | None:
    """The call with its own arguments renamed, layout and comments kept; None if it cannot be."""
    nodes = [*template.args, *template.kwargs.values()]
    if any(not isinstance(node, Setting) for node in template.args) or any(
        isinstance(node, Call) for node in nodes
    ):
        return None
    remaining = dict(recipe.kwargs)
    args: list[cst.Arg] = []
    for name, arg in old_arguments.items():
        ports = [k for k, v in template.kwargs.items() if v == Setting(name)]
        if len(args) < len(recipe.args):
            args.append(arg)
        elif ports and ports[0] in remaining:
            args.append(with_keyword(arg, ports[0]))
            del remaining[ports[0]]
    added = [keyword(name, context.source(render(value))) for name, value in remaining.items()]
    arguments = _laid_out(updated, args, added)
    if arguments is None:
        return None
    return updated.with_changes(func=context.reference(recipe.target), args=arguments)


def _laid_out(updated: cst.Call, args: list[cst.Arg], added: list[cst.Arg]) -> list[cst.Arg] | None:
    """The arguments; a line break behind the last one stays behind the last one."""
    everything = [*args, *added]
    last = updated.args[-1] if updated.args else None
    if last is None or not everything:
        return everything
    if added and args and isinstance(args[-1].comma, cst.Comma):
        if comments(args[-1].comma):
            return None
        everything[len(args) - 1] = args[-1].with_changes(comma=_separator(args))
    elif added and args:
        bare = cst.SimpleWhitespace("")
        everything[len(args) - 1] = args[-1].with_changes(whitespace_after_arg=bare)
    everything[-1] = everything[-1].with_changes(
        comma=last.comma, whitespace_after_arg=last.whitespace_after_arg
    )
    return everything


def _separator(args: list[cst.Arg]) -> cst.Comma:
    """The comma, with its line break, that this call has between its arguments."""
    for arg in args[:-1]:
        if isinstance(arg.comma, cst.Comma) and not comments(arg.comma):
            return arg.comma
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


@functools.cache
def parameters_of(function: str) -> dict[str, object]:
    """Parameters that may be given by position -> their defaults."""
    all_parameters = inspect.signature(resolve(function)).parameters.values()
    return {p.name: p.default for p in all_parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
