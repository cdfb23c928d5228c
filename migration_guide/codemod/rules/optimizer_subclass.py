# pyright: strict
"""Keeps the code of a program's own definition and wraps it where it is made.

Before:

    class SignSGD(optim.OptimizerDef):
        ...
    optimizer = SignSGD(0.1).create(params)

After:

    class SignSGD(legacy_optim.OptimizerDef):
        ...
    optimizer = optax_bridge.TrainState.create(
        apply_fn=None, params=params, tx=optax_bridge.wrap_definition(SignSGD(0.1))
    )

The class computes what it always computed, now as a GradientTransformation. Within it, and in
its arguments, everything stays legacy code.
"""

import libcst as cst

from migration_guide.codemod.reading.names import OPTIM
from migration_guide.codemod.rules.bridge import is_bridged
from migration_guide.codemod.writing.context import Context, Expression, New
from migration_guide.codemod.writing.public_optax import stays

IN_DEFINITIONS = True


def rewrite_reference(context: Context, original: Expression, _: Expression) -> New:
    """Names of flax.optim in the class statement and in its body."""
    name = context.legacy(original)
    if context.name(original) == OPTIM and context.legacy_class(original) is not None:
        return context.reference("legacy_optim")  # handed to something: `getattr(optim, name)`
    if name and context.legacy_class(original) is not None:
        return context.reference(f"legacy_optim.{name}")
    return None


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """Reports a call that makes an instance."""
    if context.legacy_class(original) or not context.analysis.makes_own_definition(original):
        return None
    if original in context.analysis.legacy or is_bridged(context, original):
        return None
    if context.options.optax_alone:
        context.remark(original, f"stays on optax_bridge: {stays(context.analysis, original)}")
    return cst.Call(context.reference("optax_bridge.wrap_definition"), [cst.Arg(updated)])


def rewrite_class(context: Context, original: cst.ClassDef, _: cst.ClassDef) -> None:
    """A subclass of Optimizer itself is left for a person."""
    if context.options.optax_alone and original in context.analysis.legacy_classes:
        context.remark(original, "stays on legacy_optim: Optax has no classes to derive from")
    for base in original.bases:
        values = context.analysis.aliases(base.value)
        if any(context.name(value) == f"{OPTIM}.Optimizer" for value in values):
            context.by_hand(
                original, "a subclass of Optimizer: derive it from optax_bridge.TrainState"
            )
