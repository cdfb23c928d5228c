"""`optimizer.optimizer_def` becomes `optimizer.tx`.

Before:

    definition = optimizer.optimizer_def
    fresh = optimizer.optimizer_def.create(params)

After:

    definition = optimizer.tx
    fresh = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=optimizer.tx)

Definition and transformation play the same part. A definition's own methods for a single parameter
have no equivalent, and are left for a person.
"""

import libcst as cst

from migration_guide.codemod.inference.kinds import LEGACY, OPTIMIZER, OWN_GROUPS
from migration_guide.codemod.writing.context import Context, New

INSTEAD = (
    "use tx.init and tx.update(grads, opt_state, params, learning_rate=...); the step of a "
    "TrainState is state.apply_gradients(grads=grads, learning_rate=...), with groups "
    "state.apply_gradients(grads=grads, hyper_params=[{...}, {...}])"
)
# What other rules take, and what a transformation has.
_HAVE_EQUIVALENTS = ("create", "hyper_params", "init", "update", "inner", "replace", "_replace")


def rewrite_attribute(context: Context, original: cst.Attribute, updated: cst.Attribute) -> New:
    """See the module."""
    name = original.attr.value
    if name == "optimizer_def" and context.is_optimizer(original.value):
        return updated.with_changes(attr=cst.Name("tx"))
    kind = context.analysis.kind(original.value)
    if context.is_definition(original.value) and not kind & {OPTIMIZER, LEGACY}:
        if name == "init_state":
            return updated.with_changes(attr=cst.Name("init"))
        is_update = name == "update_hyper_params" and context.call_of(original) is not None
        if name not in _HAVE_EQUIVALENTS and (not is_update or OWN_GROUPS in kind):
            context.by_hand(original, f".{name} of a definition has no equivalent: {INSTEAD}")
    return None
