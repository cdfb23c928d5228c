# pyright: strict
"""Orbax restores by a handler of this package's, which refuses arrays of another shape.

Before:

    import orbax.checkpoint as ocp
    checkpointer = ocp.PyTreeCheckpointer()
    manager = ocp.CheckpointManager(folder, ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler()))
    restored = manager.restore(step, args=ocp.args.PyTreeRestore(optimizer))

After:

    import orbax.checkpoint as ocp
    checkpointer = ocp.Checkpointer(optax_bridge.checkpoints.TrainStateHandler())
    manager = ocp.CheckpointManager(folder, ocp.AsyncCheckpointer(optax_bridge.checkpoints.TrainStateHandler()))
    restored = manager.restore(step, args=optax_bridge.checkpoints.TrainStateRestore(optimizer))

Where a checkpoint has an array of another shape than the template, `PyTreeRestore` hands out the
checkpoint's without an error. `StandardRestore` refuses it by itself, and stays.
"""  # noqa: E501

import libcst as cst

from migration_guide.codemod.rules.restoring import reads_nothing_old
from migration_guide.codemod.writing.context import Context, Expression, New

_HOME = "optax_bridge.checkpoints"
_HANDLER = f"{_HOME}.TrainStateHandler"
_NAMES = {
    "orbax.checkpoint.PyTreeCheckpointHandler": _HANDLER,
    "orbax.checkpoint.args.PyTreeSave": f"{_HOME}.TrainStateSave",
    "orbax.checkpoint.args.PyTreeRestore": f"{_HOME}.TrainStateRestore",
}
_CHECKPOINTER = "orbax.checkpoint.PyTreeCheckpointer"
_OF_THE_HANDLER = ("use_ocdbt", "use_zarr3")
_BY_HAND = (
    "PyTreeCheckpointer hands out arrays of another shape than the template's without an error: "
    "ocp.Checkpointer(optax_bridge.checkpoints.TrainStateHandler(...)) refuses them"
)


def rewrite_reference(context: Context, original: Expression, _: Expression) -> New:
    """See the module."""
    name = context.name(original)
    if name not in _NAMES or not _is_restored_into(context):
        return None
    return context.reference(_NAMES[name])


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """`ocp.PyTreeCheckpointer()`, which makes its handler itself."""
    if context.name(original.func) != _CHECKPOINTER or not _is_restored_into(context):
        return None
    if any(arg.keyword is None or arg.keyword.value not in _OF_THE_HANDLER for arg in updated.args):
        context.remark(original, _BY_HAND)
        return None
    if isinstance(updated.func, cst.Attribute):
        checkpointer: cst.BaseExpression = updated.func.with_changes(attr=cst.Name("Checkpointer"))
    else:
        checkpointer = context.reference("orbax.checkpoint.Checkpointer")
    handler = cst.Call(context.reference(_HANDLER), updated.args)
    return updated.with_changes(func=checkpointer, args=[cst.Arg(handler)])


def _is_restored_into(context: Context) -> bool:
    return context.uses_optim and not reads_nothing_old(context)
