# pyright: strict
"""Warns where a program keeps few files that the old one it resumes from will be removed.

Before:

    optimizer = checkpoints.restore_checkpoint("/run", optimizer)
    checkpoints.save_checkpoint("/run", optimizer, step, keep=3)

After:

    optimizer = optax_bridge.checkpoints.restore_checkpoint("/run", optimizer)
    checkpoints.save_checkpoint("/run", optimizer, step, keep=3)

The lines stay; the summary says it. `save_checkpoint` removes the oldest files of its folder, and
what flax.optim wrote is the oldest: after some saves nothing of it is left to go back to.
"""

import libcst as cst

from migration_guide.codemod.reading.tree import argument
from migration_guide.codemod.writing.context import Context

_HOME = "flax.training.checkpoints."
_SAVES = ("save_checkpoint", "save_checkpoint_multiprocess")
_KEEP = 4  # among the arguments
_MESSAGE = (
    "of its folder this keeps the last files alone: what flax.optim wrote, from which the program "
    "goes on, is removed in time. Copy it first if the training may have to go back to it"
)


def rewrite_call(context: Context, original: cst.Call, _: cst.Call) -> None:
    """See the module."""
    name = context.name(original.func)
    if not name.startswith(_HOME) or name.removeprefix(_HOME) not in _SAVES:
        return
    keep = argument(original, _KEEP, "keep")
    if keep is None or not context.uses_optim or not context.once(_restores):
        return
    if "inf" not in cst.Module([]).code_for_node(keep):  # float("inf") keeps all
        context.note(original, _MESSAGE)


def _restores(context: Context) -> bool:
    calls = context.analysis.facts.calls
    return any(context.name(call.func) == f"{_HOME}restore_checkpoint" for call in calls)
