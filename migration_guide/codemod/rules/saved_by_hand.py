"""What a program makes of an optimizer's state dict by itself is left to a person.

Before:

    saved = serialization.msgpack_restore(data)
    step = saved["state"]["step"]
    numpy.savez(file, **flattened)

After:

    saved = serialization.msgpack_restore(data)
    # optax-bridge: names of flax.optim's state dict: ...
    step = saved["state"]["step"]
    numpy.savez(file, **flattened)

The names in a file are those of the dataclasses that were saved: a `TrainState` has others than an
optimizer had. Files of old and files of today differ there, and only the program knows which it
reads. Arrays of any kind go into an .npz, so that such a file is spoken of in the summary alone.
"""

import itertools
from collections.abc import Iterator

import libcst as cst

from migration_guide.codemod import tree
from migration_guide.codemod.context import Context
from migration_guide.codemod.tree import last_name

_MAKERS = ("msgpack_restore", "to_state_dict", "state_dict")
_NAMES = (
    "names of flax.optim's state dict: what a TrainState makes has params, opt_state and step; "
    "optax_bridge.checkpoints.from_state_dict(state, saved) takes either"
)
_ARCHIVE = (
    "if an optimizer goes into this file, names in it change: params and opt_state for target and "
    "state. Old files and new ones are read by optax_bridge.checkpoints.from_state_dict(template, "
    "flax.traverse_util.unflatten_dict(dict(numpy.load(file)), sep='/')), or what joined the names"
)


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> None:
    """See the module."""
    del updated
    if not (context.analysis.uses_optim or context.analysis.project.uses_optim):
        return
    if context.name(original.func) in ("numpy.savez", "numpy.savez_compressed"):
        context.note(original, _ARCHIVE)
    if last_name(original.func) not in _MAKERS:
        return
    for subscript in _lookups(context, original):
        context.by_hand(subscript, _NAMES)


def _lookups(context: Context, call: cst.Call) -> Iterator[cst.Subscript]:
    """Where the dict that a call makes is asked for what an optimizer had."""
    found = context.once(_chains)
    for root, keys, subscript in found:
        if not _is_old(keys):
            continue
        made = context.analysis.assigned_to(root) if isinstance(root, cst.Name) else [root]
        if any(value is call for value in made):
            yield subscript


def _is_old(keys: list[str]) -> bool:
    pairs = set(itertools.pairwise(keys))
    return "param_states" in keys or "target" in keys or ("state", "step") in pairs


def _chains(context: Context) -> list[tuple[cst.BaseExpression, list[str], cst.Subscript]]:
    """The longest subscripts of the file: of what, by which strings, where."""
    found: list[tuple[cst.BaseExpression, list[str], cst.Subscript]] = []
    for node in tree.walk(context.analysis.module):
        if not isinstance(node, cst.Subscript):
            continue
        above = context.parent(node)
        if isinstance(above, cst.Subscript) and above.value is node:
            continue
        keys: list[str] = []
        root: cst.BaseExpression = node
        while isinstance(root, cst.Subscript):
            keys.insert(0, _key(root))
            root = root.value
        found.append((root, keys, node))
    return found


def _key(node: cst.Subscript) -> str:
    index = node.slice[0].slice if len(node.slice) == 1 else None
    value = index.value if isinstance(index, cst.Index) else None
    return str(value.evaluated_value) if isinstance(value, cst.SimpleString) else ""
