# pyright: strict
"""`optimizer.target` becomes `optimizer.params`.

Before:

    loss = loss_fn(optimizer.target, batch)

After:

    loss = loss_fn(optimizer.params, batch)

The optimizer stays where it was, under its name, as a `TrainState`, whose parameters are `params`.
Only where it is known that an optimizer stands before the dot: target networks and data sets have
targets, too.
"""

import libcst as cst

from migration_guide.codemod.writing.context import Context, New


def rewrite_attribute(context: Context, original: cst.Attribute, updated: cst.Attribute) -> New:
    """See the module."""
    if original.attr.value != "target" or not context.is_optimizer(original.value):
        return None
    replaced = context.parent(original)
    if isinstance(replaced, cst.Attribute) and replaced.attr.value == "replace":
        call = context.parent(replaced)
        if isinstance(call, cst.Call) and isinstance(context.parent(call), cst.Expr):
            context.note(
                original, "the result of .replace(...) is dropped: it did nothing and does nothing"
            )
    return updated.with_changes(attr=cst.Name("params"))
