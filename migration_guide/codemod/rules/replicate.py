"""`optimizer.replicate()` also averaged gradients; `jax_utils.replicate(optimizer)` stays as it is.

Before:

    optimizer = optimizer.replicate()
    optimizer = optimizer.unreplicate()

After:

    # optax-bridge: replicate() made each step average the gradients over the devices: ...
    optimizer = optimizer.replicate()
    optimizer = flax.jax_utils.unreplicate(optimizer)

The method changed what a step computes, so a person has to put `jax.lax.pmean` into the step.
"""

import libcst as cst

from migration_guide.codemod.context import Context


def rewrite_call(
    context: Context, original: cst.Call, updated: cst.Call
) -> cst.BaseExpression | None:
    """See the module."""
    func = original.func
    if not isinstance(func, cst.Attribute) or not context.is_optimizer(func.value):
        return None
    if func.attr.value == "replicate":
        context.by_hand(
            original,
            "replicate() made each step average the gradients over the devices: write "
            "flax.jax_utils.replicate(optimizer), and grads = jax.lax.pmean(grads, 'batch') before "
            ".apply_gradients(grads=grads)",
        )
    if func.attr.value == "unreplicate" and not original.args:
        assert isinstance(updated.func, cst.Attribute)
        context.needed.add("flax")
        return updated.with_changes(
            func=cst.parse_expression("flax.jax_utils.unreplicate"),
            args=[cst.Arg(updated.func.value)],
        )
    return None
