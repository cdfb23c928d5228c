"""`optimizer.apply_gradient(g)` becomes `optimizer.apply_gradients(grads=g)`.

Before:

    optimizer = optimizer.apply_gradient(grad, learning_rate=lr)
    hps = [hp.replace(learning_rate=lr) for hp in optimizer.optimizer_def.hyper_params]
    optimizer = optimizer.apply_gradient(grad, hyper_params=hps)

After:

    optimizer = optimizer.apply_gradients(grads=grad, learning_rate=lr)
    hps = [hp | {"learning_rate": lr} for hp in [tx.hyper_params for tx in optimizer.tx.inner]]
    optimizer = optimizer.apply_gradients(grads=grad, hyper_params=hps)

Per-call values keep working with this project's transformations, under the names of Optax; the rule
for constructors chooses those wherever a step gives one. `**overrides` stay, with a note: a legacy
name in them that Optax does not know is an error when the step runs, never ignored.
"""

import libcst as cst

from migration_guide.codemod.inference.kinds import OPTIMIZER, OWN_GROUPS
from migration_guide.codemod.reading.tree import keyword_of, with_keyword
from migration_guide.codemod.rules.hyper_params import as_overrides, is_one, port_name
from migration_guide.codemod.rules.optimizer_def import INSTEAD
from migration_guide.codemod.rules.replicate import average_gradients
from migration_guide.codemod.rules.schedule import provable
from migration_guide.codemod.rules.unclear import UNCLEAR
from migration_guide.codemod.writing.context import Context, New
from migration_guide.codemod.writing.optax_alone import with_hyper_params

_OVERRIDES = (
    "these overrides now need the names of optax_bridge's transformation, e.g. b1 for beta1; "
    "learning_rate is the same, and an unknown name is an error"
)


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """See the module."""
    if not isinstance(original.func, cst.Attribute) or original.func.attr.value != "apply_gradient":
        return None
    holder = original.func.value
    if not context.is_optimizer(holder):
        kind = context.analysis.kind(holder)
        if sum(arg.keyword is None and not arg.star for arg in original.args) > 1:
            if not _is_own(context, holder):
                context.by_hand(
                    original, f".apply_gradient of a definition has no equivalent: {INSTEAD}"
                )
            return None
        if (not kind or OPTIMIZER in kind) and not _is_own(context, holder):
            context.by_hand(original, UNCLEAR)
        return None
    assert isinstance(updated.func, cst.Attribute)
    plain = not any(arg.star for arg in original.args)
    if plain and len(original.args) > 1 and context.is_optax_alone:
        return _optax_alone(context, original, updated)
    args = [
        _argument(context, holder, index, old, new)
        for index, (old, new) in enumerate(zip(original.args, updated.args, strict=True))
    ]
    if None in args:
        context.by_hand(
            original,
            "write out the hyper-parameters that this step overrides: "
            ".apply_gradients(grads=..., learning_rate=...), with the names of optax_bridge's "
            "transformation; a definition of your own keeps its names",
        )
        return None
    if not plain:
        context.note(original, _OVERRIDES)
    func = updated.func.with_changes(attr=cst.Name("apply_gradients"))
    return updated.with_changes(func=func, args=[arg for arg in args if arg is not None])


def _optax_alone(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call | None:
    """`with_hyper_params(optimizer, learning_rate=lr).apply_gradients(grads=g)`."""
    assert isinstance(original.func, cst.Attribute) and isinstance(updated.func, cst.Attribute)
    gradients = [arg for arg in updated.args if keyword_of(arg) in ("", "grads")]
    overrides = [arg for arg in updated.args if arg not in gradients]
    if len(gradients) != 1:
        return None
    (grads,) = gradients
    value = average_gradients(context, original.func.value, grads.value)
    if context.once(provable) is not None:
        holder: cst.BaseExpression = updated.func.value  # a schedule has the rate
    else:
        holder = with_hyper_params(context, updated.func.value, overrides)
    last = with_keyword(grads.with_changes(value=value), "grads")
    func = cst.Attribute(holder, cst.Name("apply_gradients"))
    return updated.with_changes(
        func=func, args=[last.with_changes(comma=cst.MaybeSentinel.DEFAULT)]
    )


def _argument(
    context: Context, holder: cst.BaseExpression, index: int, old: cst.Arg, new: cst.Arg
) -> cst.Arg | None:
    if old.star:
        is_optax_alone = context.is_optax_alone  # whose steps take none
        return new if old.star == "**" and not is_optax_alone else None
    if old.keyword is None or old.keyword.value == "grads":
        if index > 0 and old.keyword is None:
            return None
        new = new.with_changes(value=average_gradients(context, holder, new.value))
        return with_keyword(new, "grads")
    if OWN_GROUPS in context.analysis.kind(holder):
        return new  # legacy code takes them, under its own names
    if old.keyword.value == "hyper_params":
        if not is_one(context, old.value):
            return None
        override = as_overrides(context, old.value, new.value)
        return new if override is None else override.with_changes(comma=new.comma)
    name = port_name(context, old.keyword.value)
    return None if name is None else with_keyword(new, name)


def _is_own(context: Context, holder: cst.BaseExpression) -> bool:
    """True if this is a method of another class, `self` in the program's own classes included."""
    return context.analysis.program.own_apply_gradient or (
        isinstance(holder, cst.Name) and holder.value in ("self", "cls", "super")
    )
