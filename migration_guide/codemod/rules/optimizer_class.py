# pyright: strict
"""`optim.Optimizer` in annotations and checks becomes `optax_bridge.TrainState`.

Before:

    def train_step(optimizer: optim.Optimizer, batch): ...
    if isinstance(x, flax.optim.Optimizer): ...
    definition: optim.OptimizerDef

After:

    def train_step(optimizer: optax_bridge.TrainState, batch): ...
    if isinstance(x, optax_bridge.TrainState): ...
    definition: optax.GradientTransformation

An Optimizer or OptimizerState that is built by hand has parts that no longer exist: that is left
for a person.
"""

import libcst as cst

from migration_guide.codemod.writing import optax_alone
from migration_guide.codemod.writing.context import Context, Expression, New

_EQUAL = {"Optimizer": "optax_bridge.TrainState", "OptimizerDef": "optax.GradientTransformation"}


def rewrite_reference(context: Context, original: Expression, _: Expression) -> New:
    """See the module."""
    name = context.legacy(original)
    if name not in ("Optimizer", "OptimizerDef", "OptimizerState"):
        return None
    above = context.parent(original)
    if isinstance(above, cst.Arg) and isinstance(context.parent(above), cst.ClassDef):
        return None  # a base class: the rule for subclasses
    if name == "OptimizerDef" and original in context.analysis.bases:
        return context.reference("legacy_optim.OptimizerDef")
    if context.call_of(original) is not None:
        uses_bridge = not context.is_optax_alone
        class_ = _EQUAL["Optimizer"] if uses_bridge else optax_alone.TRAIN_STATE
        context.by_hand(
            original,
            f"{name}(...) built by hand: {class_}.create(apply_fn=None, params=..., tx=...), then "
            ".replace(step=..., opt_state=...)",
        )
        return None
    if isinstance(above, cst.MatchClass):
        context.by_hand(original, f"{name} in a pattern: a TrainState has params, step, opt_state")
        return None
    if name == "OptimizerState":
        context.by_hand(
            original,
            "OptimizerState has no equivalent: step is TrainState.step, the rest .opt_state",
        )
        return None
    if name == "Optimizer" and context.is_optax_alone:
        context.needed.add("flax.training.train_state")
        return cst.parse_expression(optax_alone.TRAIN_STATE)
    return context.reference(_EQUAL[name])
