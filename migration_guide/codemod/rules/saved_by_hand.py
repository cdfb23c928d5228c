"""Leaves to a person what a program itself does with an optimizer's state dict.

Before:

    saved = serialization.msgpack_restore(data)
    step = saved["state"]["step"]
    kept = {name: part for name, part in saved.items() if name in ("target", "state")}
    numpy.savez(file, **flattened)

After:

    saved = serialization.msgpack_restore(data)
    # optax-bridge: names of flax.optim's state dict: ...
    step = saved["state"]["step"]
    # optax-bridge: names of flax.optim's state dict: ...
    kept = {name: part for name, part in saved.items() if name in ("target", "state")}
    numpy.savez(file, **flattened)

The names in a file are those of the dataclasses that were saved: a `TrainState` has others than an
optimizer had. Files of old and files of today differ there, and only the program knows which it
reads. Arrays of any kind go into an .npz, so that such a file is spoken of in the summary alone.
"""

import itertools
from collections.abc import Iterator

import libcst as cst

from migration_guide.codemod.inference.kinds import OPTIMIZER, STATE, Function, within
from migration_guide.codemod.reading.tree import argument, last_name, text_of, walk
from migration_guide.codemod.rules.restoring import reads_nothing_old
from migration_guide.codemod.writing import lookups
from migration_guide.codemod.writing.context import Context, Line

_MAKERS = (
    "load_state_dict", "msgpack_restore", "restore_checkpoint", "restore_dict", "state_dict",
    "to_state_dict",
)  # fmt: skip
_DEEPEST = 4  # functions that return what functions return
_TAKERS = ("restore_state", "from_state_dict")
_NAMES = (
    "names of flax.optim's state dict: what a TrainState makes has params, opt_state and step, and "
    "counts of steps in opt_state; "
)
EITHER = (
    "optax_bridge.checkpoints.from_state_dict(state, saved) takes either, and "
    "flax.serialization.to_state_dict(state.to_legacy(definition)) makes the old one"
)
_CONVERTED = (
    "use those, which `optax-bridge inspect FILE` shows of a file that `optax-bridge convert` made"
)
_ARCHIVE = (
    "if an optimizer goes into this file, names in it change: params and opt_state for target and "
    "state. Old files and new ones are read by optax_bridge.checkpoints.from_state_dict(template, "
    "flax.traverse_util.unflatten_dict(dict(numpy.load(file)), sep='/')), or what joined the names"
)


def rewrite_call(context: Context, original: cst.Call, _: cst.Call) -> None:
    """See the module."""
    if not context.uses_optim:
        return
    is_archive = context.name(original.func) in ("numpy.savez", "numpy.savez_compressed")
    if is_archive and context.once(_holds_some):
        context.note(original, _ARCHIVE)
    if last_name(original.func) in _TAKERS and any(_repeats(context, a) for a in original.args):
        context.by_hand(original, _names(context))
    if last_name(original.func) not in _MAKERS or _has_template(original):
        return
    for lookup in _lookups(context, original):
        context.by_hand(lookup, _names(context))


def rewrite_statement(context: Context, original: Line, _: Line) -> None:
    """`name in ("target", "state")`: what is picked by these names is an optimizer's."""
    if not context.uses_optim:
        return
    for node in walk(original):
        if isinstance(node, cst.ComparisonTarget) and isinstance(
            node.comparator, cst.Tuple | cst.List | cst.Set
        ):
            texts = {text_of(element.value) for element in node.comparator.elements}
            if {"target", "state"} <= texts:
                context.by_hand(original, _names(context))


def _holds_some(context: Context) -> bool:
    """True if some expression of the file is, or has in it, an optimizer or a part of one."""
    analysis = context.analysis
    nodes = [*analysis.facts.calls, *analysis.facts.attributes]
    atoms = {atom for node in nodes for atom in within(analysis.kind(node))}
    return bool(atoms & {OPTIMIZER, STATE})


def _names(context: Context) -> str:
    """Returns the advice about names; Flax's own TrainState has no inverse."""
    return _NAMES + (_CONVERTED if context.once(reads_nothing_old) else EITHER)


def _has_template(call: cst.Call) -> bool:
    """True if a checkpoint is restored into something, whose names the result has."""
    if last_name(call.func) != "restore_checkpoint":
        return False
    template = argument(call, 1, "target")
    return template is not None and last_name(template) != "None"


def _repeats(context: Context, argument: cst.Arg) -> bool:
    """True if it is `{"target": saved["target"], ...}`: a dict out of one with the same names."""
    if not isinstance(argument.value, cst.Dict):
        return False
    values = [
        element.value
        for element in argument.value.elements
        if isinstance(element, cst.DictElement) and text_of(element.key) == "target"
    ]
    chains = context.once(_chains)
    return any(node in values and keys[-1] == "target" for _, keys, node in chains)


def _lookups(context: Context, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yields the look-ups of an optimizer's parts in the dict that a call makes."""
    chains = context.once(_chains)
    for root, keys, lookup in chains:
        if not _is_old(keys):
            continue
        values = context.analysis.assigned_to(root) if isinstance(root, cst.Name) else [root]
        if any(_is_made_by(context, value, call) for value in values):
            yield lookup


def _chains(context: Context) -> list[lookups.Chain]:
    return lookups.chains(context.analysis)


def _is_made_by(context: Context, value: cst.BaseExpression, call: cst.Call, deep: int = 0) -> bool:
    """True if a value is a call's result, or passed through a function: `device_get(...)` of it."""
    if value is call:
        return True
    if not isinstance(value, cst.Call) or deep > _DEEPEST:
        return False
    functions = [a.node for a in context.analysis.kind(value.func) if isinstance(a, Function)]
    returned = [r for f in functions for r in context.analysis.facts.returns.get(f, ())]
    parts = [*(arg.value for arg in value.args), *returned]
    return any(_is_made_by(context, part, call, deep + 1) for part in parts)


def _is_old(keys: list[str]) -> bool:
    pairs = set(itertools.pairwise(keys))
    return "param_states" in keys or "target" in keys or ("state", "step") in pairs
