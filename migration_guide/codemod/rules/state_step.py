# pyright: strict
"""`optimizer.state.step` becomes `optimizer.step`.

Before:

    step = int(optimizer.state.step)
    first_moment = optimizer.state.param_states

After:

    step = int(optimizer.step)
    # optax-bridge: optimizer.state is now split: ...
    first_moment = optimizer.state.param_states

The step counts the same in both. The state of each parameter has other names and another layout in
`opt_state`, so it is left for a person.
"""

import libcst as cst

from migration_guide.codemod.writing.context import Context, New


def rewrite_attribute(context: Context, original: cst.Attribute, updated: cst.Attribute) -> New:
    """See the module."""
    inner = original.value
    if (
        original.attr.value == "step"
        and isinstance(inner, cst.Attribute)
        and inner.attr.value == "state"
        and context.is_optimizer(inner.value)
        and isinstance(updated.value, cst.Attribute)
    ):
        return updated.with_changes(value=updated.value.value)
    if original.attr.value != "state" or not context.is_optimizer(inner):
        return None
    above = context.parent(original)
    if not (isinstance(above, cst.Attribute) and above.attr.value == "step"):
        context.by_hand(
            original,
            "optimizer.state is now split: the step is .step, the moments are in .opt_state; read "
            "them with optax.tree.get(state.opt_state, NAME), set them with "
            "optax.tree.set(state.opt_state, NAME=...); `optax-bridge recipe 'CALL(...)'` lists "
            "the names. The state of a definition of your own is .opt_state itself, unchanged",
        )
    return None
