"""`save_checkpoint("run", ...)` becomes `save_checkpoint(os.path.abspath("run"), ...)`.

Before:

    checkpoints.save_checkpoint("run", optimizer, step)
    checkpoints.save_checkpoint(folder, optimizer, step)

After:

    checkpoints.save_checkpoint(os.path.abspath("run"), optimizer, step)
    # optax-bridge (note): Flax hands this folder to Orbax now, ...
    checkpoints.save_checkpoint(folder, optimizer, step)

Flax hands the folder to Orbax now, which takes absolute paths alone. A folder of which nobody can
see whether it is one gets a comment. What this package restores takes either.
"""

import libcst as cst

from migration_guide.codemod import constants
from migration_guide.codemod.context import Context
from migration_guide.codemod.rules.restoring import is_rewritten, reads_nothing_old

_CALLS = ("save_checkpoint", "save_checkpoint_multiprocess", "restore_checkpoint")
_HOME = "flax.training.checkpoints."
_SAID = (
    "Flax hands this folder to Orbax now, which takes absolute paths alone: os.path.abspath(...) "
    "makes one"
)


def rewrite_call(
    context: Context, original: cst.Call, updated: cst.Call
) -> cst.BaseExpression | None:
    """See the module."""
    name = context.name(original.func)
    if not name.startswith(_HOME) or name.removeprefix(_HOME) not in _CALLS:
        return None
    if is_rewritten(context, name, original) and not reads_nothing_old(context):
        return None
    for index, arg in enumerate(original.args):
        is_folder = index == 0 if arg.keyword is None else arg.keyword.value == "ckpt_dir"
        if not is_folder or arg.star:
            continue
        if constants.is_absolute(context, arg.value):
            return None
        if constants.text(context, arg.value) is None:
            context.remark(original, _SAID)
            return None
        folder = updated.args[index].value
        absolute = cst.Call(context.dotted("os.path.abspath"), [cst.Arg(folder)])
        args = list(updated.args)
        args[index] = args[index].with_changes(value=absolute)
        return updated.with_changes(args=args)
    return None
