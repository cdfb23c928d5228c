"""Saving and restoring: the calls stay, the files change their layout.

Before:

    saved = optimizer.state_dict()
    optimizer = optimizer.restore_state(saved)
    checkpoints.save_checkpoint(folder, optimizer, step)

After:

    saved = flax.serialization.to_state_dict(optimizer)
    optimizer = flax.serialization.from_state_dict(optimizer, saved)
    checkpoints.save_checkpoint(folder, optimizer, step)

What is saved is a TrainState now, so files written before need converting; the summary says so.
"""

import libcst as cst

from migration_guide.codemod.context import Context, separated
from migration_guide.codemod.kinds import OPTIMIZER, Items, Kind, Several

_FILES = (
    "save_checkpoint",
    "save_checkpoint_multiprocess",
    "restore_checkpoint",
    "to_bytes",
    "from_bytes",
    "to_state_dict",
    "from_state_dict",
    "msgpack_serialize",
    "msgpack_restore",
)
_MOVED = "what is saved here is a TrainState now: files written before need `optax-bridge convert`"


def rewrite_call(
    context: Context, original: cst.Call, updated: cst.Call
) -> cst.BaseExpression | None:
    """See the module."""
    func = original.func
    last = func.attr.value if isinstance(func, cst.Attribute) else getattr(func, "value", "")
    if last in _FILES and context.name(func).startswith("flax."):
        if any(_holds(context.analysis.kind(arg.value)) for arg in original.args) or _fields(
            context
        ):
            context.note(original, _MOVED)
        return None
    if not isinstance(func, cst.Attribute) or not context.is_optimizer(func.value):
        return None
    assert isinstance(updated.func, cst.Attribute)
    holder = cst.Arg(updated.func.value)
    if last == "state_dict" and not original.args:
        context.note(original, _MOVED)
        return updated.with_changes(func=_serialization(context, "to_state_dict"), args=[holder])
    if last == "restore_state" and len(original.args) == 1:
        context.note(original, _MOVED)
        given = updated.args[0].with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)
        return updated.with_changes(
            func=_serialization(context, "from_state_dict"), args=separated([holder, given])
        )
    return None


def _serialization(context: Context, name: str) -> cst.BaseExpression:
    context.needed.add("flax")
    return cst.parse_expression(f"flax.serialization.{name}")


def _holds(kind: Kind) -> bool:
    for atom in kind:
        inner = (
            atom.items
            if isinstance(atom, Several)
            else (atom.kind,)
            if isinstance(atom, Items)
            else ()
        )
        if atom == OPTIMIZER or any(map(_holds, inner)):
            return True
    return False


def _fields(context: Context) -> bool:
    """Whether some field of the program's own state classes holds an optimizer."""
    return any(_holds(kind) for kind in context.analysis.fields.values())
