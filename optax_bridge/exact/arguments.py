"""Which keyword arguments a transformation takes per call.

Optax transformations pass every extra argument on to their parts and ignore what they do not know,
so a misspelt `learnig_rate=` would vanish. This asks the parts: an `ExactTransformation` names what
it takes; of any other transformation the `update` functions that it is built from are read,
signatures first.
"""

import dis
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import optax

from optax_bridge.exact.transformation import ExactTransformation

_PROTOCOL = 3  # updates, state, params


def accepted_arguments(tx: optax.GradientTransformation) -> frozenset[str] | None:
    """The extra keyword arguments that `tx.update` makes use of.

    Args:
      tx: any transformation, chains and wrappers included.

    Returns:
      Their names; None if a part reads `**kwargs` as a whole, so that any name may have a meaning.
    """
    names: set[str] = set()
    for part in _parts(tx, seen=set()):
        if part is None:
            return None
        names |= part
    return frozenset(names)


def _parts(value: Any, seen: set[int]) -> Iterator[set[str] | None]:
    """Yields the names that each function or transformation within `value` takes, None for any."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, ExactTransformation):
        yield set(value.hyper_params)
        for inner in value.inner:
            yield from _parts(inner, seen)
    elif isinstance(value, optax.GradientTransformation):
        if isinstance(value, optax.GradientTransformationExtraArgs):
            yield from _of_update(value.update, seen)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _parts(item, seen)
    elif isinstance(value, dict):
        yield from _parts(list(value.values()), seen)
    elif isinstance(value, functools.partial):
        yield from _parts([value.func, *value.args, *value.keywords.values()], seen)
    elif exact := getattr(value, "exact", None):  # all that `optax.chain` keeps is the function
        yield from _parts(exact, seen)
    elif _looks_like_update(value):
        yield from _of_update(value, seen)


def _of_update(update: Callable[..., Any], seen: set[int]) -> Iterator[set[str] | None]:
    parameters = list(inspect.signature(update).parameters.values())
    yield {
        p.name
        for index, p in enumerate(parameters)
        if p.kind is p.KEYWORD_ONLY or (p.kind is p.POSITIONAL_OR_KEYWORD and index >= _PROTOCOL)
    }
    rest = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
    inner = [name for cell in enclosed(update) for name in _parts(cell, seen)]
    yield from inner
    if rest and not inner and _reads(update, rest):
        yield None


def enclosed(function: Callable[..., Any]) -> list[Any]:
    """What a function closes over, wrappers' targets included."""
    if isinstance(function, functools.partial):
        return [function.func, *function.args, *function.keywords.values()]
    if inspect.ismethod(function):
        return [*vars(function.__self__).values(), *enclosed(function.__func__)]
    found = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return [*found, getattr(function, "__wrapped__", None)]


def _looks_like_update(value: Any) -> bool:
    """Whether this is a function that takes (updates, state, ...), the shape of an `update`."""
    if not inspect.isroutine(value) or inspect.isbuiltin(value):
        return False
    names = [p.name for p in inspect.signature(value).parameters.values()]
    return names[:2] in (["updates", "state"], ["grads", "state"])


def _reads(function: Callable[..., Any], name: str) -> bool:
    """Whether the function's code loads the variable, as against deleting or ignoring it."""
    code = getattr(function, "__code__", None)
    if code is None:
        return True
    return any(
        step.opname.startswith("LOAD") and name in str(step.argval)
        for step in dis.get_instructions(code)
    )
