# pyright: strict
"""`optimizer.replace(target=x)` becomes `optimizer.replace(params=x)`.

Before:

    optimizer = optimizer.replace(target=params)

After:

    optimizer = optimizer.replace(params=params)

Both keep the moments and the step. Replacing `state` or `optimizer_def` is left for a person: the
parts of a TrainState are others.
"""

import libcst as cst

from migration_guide.codemod.reading.tree import keyword_of, method_call
from migration_guide.codemod.writing.context import Context, New


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """See the module."""
    holder = _replaced_object(context, original)
    if holder is None or not context.is_optimizer(holder):
        return None
    names = [keyword_of(arg) for arg in original.args]
    if "state" in names or "optimizer_def" in names:
        context.by_hand(
            original,
            "replace fields of the TrainState: .replace(params=..., step=..., opt_state=...); when "
            "you set step, also set the counts in opt_state, if it has any: "
            "optax.tree.set(opt_state, count=step)",
        )
        return None
    if "target" not in names:
        return None
    args = [
        arg.with_changes(keyword=cst.Name("params")) if name == "target" else arg
        for name, arg in zip(names, updated.args, strict=True)
    ]
    return updated.with_changes(args=args)


def _replaced_object(context: Context, call: cst.Call) -> cst.BaseExpression | None:
    """Returns the object replaced in `x.replace(...)` or `dataclasses.replace(x, ...)`."""
    if context.name(call.func) == "dataclasses.replace":
        return call.args[0].value if call.args else None
    holder, method = method_call(call)
    return holder if method == "replace" else None
