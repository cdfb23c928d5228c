# pyright: strict
"""`optim.ModelParamTraversal(fn)` becomes `optax_bridge.path_mask(fn)`.

Before:

    kernels = optim.ModelParamTraversal(lambda path, _: "kernel" in path)
    definition = optim.MultiOptimizer((kernels, optim.Momentum(0.1)))

After:

    kernels = optax_bridge.path_mask(lambda path, _: "kernel" in path)
    definition = optax_bridge.multi_optimizer((kernels, optax.sgd(0.1, ...)))

Both see the same '/'-joined paths. A file that also updates or iterates through a traversal keeps
it, as `legacy_optim.ModelParamTraversal`, which multi_optimizer takes as well; so does a file that
hands it to a definition that stays legacy code.
"""

import libcst as cst

from migration_guide.codemod.writing import public_optax
from migration_guide.codemod.writing.context import Context, Expression, New


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """With `--recipe optax`, a traversal that only selects groups is its function."""
    if context.legacy(original.func) != "ModelParamTraversal":
        return None
    return updated.args[0].value if _becomes_function(context, original) else None


def _becomes_function(context: Context, call: cst.Call) -> bool:
    active = context.is_optax_alone
    return active and public_optax.becomes_function(context.analysis, call)


def rewrite_reference(context: Context, original: Expression, _: Expression) -> New:
    """See the module."""
    if context.legacy(original) != "ModelParamTraversal":
        return None
    call = context.call_of(original)
    if call is not None and _becomes_function(context, call):
        return None
    if call is not None and call not in context.analysis.legacy and not _is_traversed(context):
        return context.reference("optax_bridge.path_mask")
    if context.options.optax_alone:
        context.remark(original, "stays on legacy_optim: Flax's own is deprecated")
    return context.reference("legacy_optim.ModelParamTraversal")


def _is_traversed(context: Context) -> bool:
    """True if some traversal is used for itself, not only to select a group."""
    return any(context.is_traversal(node.value) for node in context.analysis.facts.attributes)
