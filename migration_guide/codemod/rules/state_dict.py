"""The optimizer's own methods to save and restore become functions.

Before:

    saved = optimizer.state_dict()
    optimizer = optimizer.restore_state(saved)

After:

    saved = flax.serialization.to_state_dict(optimizer)
    optimizer = optax_bridge.checkpoints.from_state_dict(optimizer, saved)

The dict may be of today or of flax.optim: the function takes both. It refuses entries that it has
no place for; so it is given none that the program takes from the dict itself.
"""

import libcst as cst

from migration_guide.codemod.rules.restoring import CONVERTING, needs_converting, reads_nothing_old
from migration_guide.codemod.writing.context import Context, New
from migration_guide.codemod.writing.lookups import without_taken


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """See the module."""
    func = original.func
    if not isinstance(func, cst.Attribute) or not context.is_optimizer(func.value):
        return None
    assert isinstance(updated.func, cst.Attribute)
    holder = cst.Arg(updated.func.value)
    if func.attr.value == "state_dict" and not original.args:
        context.needed.add("flax")
        function = cst.parse_expression("flax.serialization.to_state_dict")
        return updated.with_changes(func=function, args=[holder])
    if func.attr.value == "restore_state" and len(original.args) == 1 and not original.args[0].star:
        state = updated.args[0].with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)
        state = without_taken(context.analysis, original.args[0].value, state)
        home = "optax_bridge.checkpoints"
        if reads_nothing_old(context):
            context.remark(original, needs_converting(context, None, "restore_state"), CONVERTING)
            home = "flax.serialization"
        return updated.with_changes(
            func=context.reference(f"{home}.from_state_dict"),
            args=[holder, state],
        )
    return None
