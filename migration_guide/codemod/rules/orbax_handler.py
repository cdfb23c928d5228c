# pyright: strict
"""Orbax's handler of pytrees gets a comment: it hands out arrays of another shape.

Before:

    checkpointer = ocp.PyTreeCheckpointer()

After:

    # optax-bridge: ... optax_bridge.checkpoints.restore_checkpoint refuses them
    checkpointer = ocp.PyTreeCheckpointer()
"""

from migration_guide.codemod.rules.restoring import reads_nothing_old
from migration_guide.codemod.writing.context import Context, Expression, New

_NAMES = (
    "orbax.checkpoint.PyTreeCheckpointer",
    "orbax.checkpoint.PyTreeCheckpointHandler",
    "orbax.checkpoint.args.PyTreeRestore",
)
_COMMENT = (
    "{} hands out arrays of another shape than the template's without an error: "
    "optax_bridge.checkpoints.restore_checkpoint refuses them"
)


def rewrite_reference(context: Context, original: Expression, _: Expression) -> New:
    """See the module."""
    name = context.name(original)
    if name in _NAMES and context.uses_optim and not reads_nothing_old(context):
        context.remark(original, _COMMENT.format(name.rpartition(".")[2]))
