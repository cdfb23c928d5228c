# pyright: strict
"""A `Checkpoint` of clu reads files with optimizers of flax.optim as well as new ones.

Before:

    ckpt = checkpoint.MultihostCheckpoint(folder, max_to_keep=2)
    optimizer = ckpt.restore_or_initialize(optimizer)

After:

    def reading_old_files(checkpoint):
        ...

    ckpt = reading_old_files(checkpoint.MultihostCheckpoint(folder, max_to_keep=2))
    optimizer = ckpt.restore_or_initialize(optimizer)

clu keeps a state as Flax's `to_bytes` writes it, and reads it with `from_bytes`, which refuses the
names that an optimizer had. The wrapper reads through `optax_bridge.checkpoints.from_state_dict`,
which takes either.
"""

import libcst as cst

from migration_guide.codemod.inference.kinds import Instance
from migration_guide.codemod.reading.tree import last_name
from migration_guide.codemod.rules.restoring import CONVERTING, needs_converting, reads_nothing_old
from migration_guide.codemod.writing.context import Context, New

_CLASSES = ("clu.checkpoint.Checkpoint", "clu.checkpoint.MultihostCheckpoint")
_HELPER = "reading_old_files"
_SOURCE = '''
def {name}(checkpoint):
    """Makes a checkpoint of clu read files with optimizers of flax.optim too."""
    load = checkpoint.load_state

    def load_state(state, path=None):
        saved = load(None, path)
        if state is None:
            return saved
        return optax_bridge.checkpoints.from_state_dict(state, saved)

    checkpoint.load_state = load_state
    return checkpoint
'''


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """See the module."""
    if not context.uses_optim or not _makes_checkpoint(context, original):
        return None
    above = context.parent(context.parent(original) or original)
    if isinstance(above, cst.Call) and last_name(above.func).rstrip("_") == _HELPER:
        return None
    if reads_nothing_old(context):
        advice = needs_converting(context, None, "flax.serialization.from_bytes")
        context.remark(original, advice, CONVERTING)
        return None
    context.needed.add("optax_bridge")
    return cst.Call(cst.Name(context.function(_HELPER, _SOURCE)), [cst.Arg(updated)])


def _makes_checkpoint(context: Context, call: cst.Call) -> bool:
    """True if a call makes a checkpoint of clu, or one of a class that derives from it."""
    if context.name(call.func) in _CLASSES:
        return True
    classes = (a.node for a in context.analysis.kind(call.func) if isinstance(a, Instance))
    return any(context.name(base.value) in _CLASSES for c in classes for base in c.bases)
