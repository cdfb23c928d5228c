"""`optimizer.replace(target=x)` becomes `optimizer.replace(params=x)`.

Before:

    optimizer = optimizer.replace(target=params)

After:

    optimizer = optimizer.replace(params=params)

Both keep the moments and the step. Replacing `state` or `optimizer_def` is left for a person: the
parts of a TrainState are others.
"""

import libcst as cst

from migration_guide.codemod.context import Context


def rewrite_call(
    context: Context, original: cst.Call, updated: cst.Call
) -> cst.BaseExpression | None:
    """See the module."""
    func = original.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "replace":
        return None
    if not context.is_optimizer(func.value):
        return None
    given = [arg.keyword.value if arg.keyword is not None else arg.star for arg in original.args]
    if "state" in given or "optimizer_def" in given:
        context.by_hand(
            original,
            "replace the parts of the TrainState: .replace(params=..., step=..., opt_state=...)",
        )
        return None
    if "target" not in given:
        return None
    args = [
        arg.with_changes(keyword=cst.Name("params")) if name == "target" else arg
        for name, arg in zip(given, updated.args, strict=True)
    ]
    return updated.with_changes(args=args)
