"""`optimizer.optimizer_def` becomes `optimizer.tx`.

Before:

    definition = optimizer.optimizer_def
    fresh = optimizer.optimizer_def.create(params)

After:

    definition = optimizer.tx
    fresh = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=optimizer.tx)

Definition and transformation play the same part. A definition's own methods for a single parameter
have no equal, and are left for a person.
"""

import libcst as cst

from migration_guide.codemod.context import Context

_NO_EQUAL = (
    "sub_optimizers",
    "traversals",
    "wrapped_optimizer",
    "apply_gradient",
    "apply_param_gradient",
    "init_param_state",
    "update_hyper_params",
    "restore_state",
)


def rewrite_attribute(
    context: Context, original: cst.Attribute, updated: cst.Attribute
) -> cst.BaseExpression | None:
    """See the module."""
    name = original.attr.value
    if name == "optimizer_def" and context.is_optimizer(original.value):
        return updated.with_changes(attr=cst.Name("tx"))
    if context.is_definition(original.value) and not context.is_optimizer(original.value):
        if name == "init_state":
            return updated.with_changes(attr=cst.Name("init"))
        if name in _NO_EQUAL:
            context.by_hand(
                original, f".{name} of a definition has no equal: use tx.init and tx.update"
            )
    return None
