# pyright: strict
"""A definition known only at run time is bridged by `optax_bridge.from_legacy`.

Before:

    definition = {"adam": optim.Adam, "momentum": optim.Momentum}[name](rate)
    definition = getattr(optim, name)(**settings)
    optimizer = clipping.Optimizer(0.1).create(params)  # of a module that this run does not see

After:

    # optax-bridge (note): chosen at run time ...
    definition = optax_bridge.from_legacy(
        {"adam": legacy_optim.Adam, "momentum": legacy_optim.Momentum}[name](rate)
    )
    # optax-bridge (note): chosen at run time ...
    definition = optax_bridge.from_legacy(getattr(legacy_optim, name)(**settings))
    # optax-bridge (note): ...
    optimizer = optax_bridge.TrainState.create(
        apply_fn=None, params=params, tx=optax_bridge.from_legacy(clipping.Optimizer(0.1))
    )

`legacy_optim` has the same classes; `from_legacy` turns any of their definitions into a
transformation with the same arithmetic. So the program runs unchanged, and a comment says how to do
without the bridge.
"""

import libcst as cst

from migration_guide.codemod.inference.kinds import CLASS
from migration_guide.codemod.reading.names import OPTIM
from migration_guide.codemod.reading.tree import last_name
from migration_guide.codemod.writing.context import Context, Expression, New

BRIDGE = "optax_bridge.from_legacy"
CHOSEN = (
    "chosen at run time, so it stays on legacy_optim, and from_legacy converts it; to do without, "
    "write an Optax optimizer for each choice (`optax-bridge recipe 'NAME(...)'`)"
)
_UNSEEN = (
    "from a module outside this migration, so it stays on optax_bridge: from_legacy converts a "
    "legacy definition; once that module returns an Optax transformation, drop from_legacy"
)
_ESCAPES = (
    "this class is called in code outside this migration: wrap the result, "
    "optax_bridge.from_legacy(...), or pass an Optax optimizer instead (`optax-bridge recipe`)"
)
_NO_CLASS = (
    "a transformation has no class of its own: make a new one by the same call, and take its name "
    "from the setting that chose it"
)
_CLASS_CHECKS = ("isinstance", "issubclass", "assertIsInstance", "assertNotIsInstance")
_LOOKUPS = ("getattr", "hasattr", "vars", "dir")


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """See the module."""
    if last_name(original.func) == "type" and len(original.args) == 1:
        of_definition = context.is_definition(original.args[0].value)
        if of_definition and not _is_compared(context, original):
            context.by_hand(original, _NO_CLASS)
    if original in context.analysis.legacy or is_bridged(context, original):
        return None
    if original in context.analysis.external:
        return add_bridge(context, original, updated, _UNSEEN)
    names = context.analysis.names
    chosen = CLASS in context.analysis.kind(original.func) and names.entry(original.func) is None
    if not chosen or context.analysis.makes_own_definition(original):
        return None
    if last_name(original.func) == "partial":
        return None
    return add_bridge(context, original, updated, CHOSEN)


def rewrite_reference(context: Context, original: Expression, _: Expression) -> New:
    """A class that is not called, or the module itself, as a value."""
    above = context.parent(original)
    if context.name(original) == OPTIM:
        if not isinstance(above, cst.Arg):
            return None
        call = context.parent(above)
        if isinstance(call, cst.Call) and last_name(call.func) in _LOOKUPS:
            return context.reference("legacy_optim")
        context.by_hand(original, _ESCAPES)
        return None
    if context.analysis.names.entry(original) is None or context.in_annotation(original):
        return None
    is_base = isinstance(above, cst.Arg) and isinstance(context.parent(above), cst.ClassDef)
    if context.call_of(original) is not None or is_base:
        return None
    if _is_compared(context, original):
        context.by_hand(
            original,
            "which class a definition has cannot be asked of a transformation: keep the choice "
            "that made it, and ask that",
        )
        return None
    if not context.analysis.program.calls_classes and original not in context.analysis.bases:
        context.remark(original, _ESCAPES)
    return context.reference(f"legacy_optim.{context.legacy(original)}")


def add_bridge(
    context: Context, original: cst.CSTNode, updated: cst.BaseExpression, why: str
) -> cst.BaseExpression:
    """An expression in `optax_bridge.from_legacy(...)`, with why above it."""
    context.remark(original, why)
    return cst.Call(context.reference(BRIDGE), [cst.Arg(updated)])


def is_bridged(context: Context, node: cst.CSTNode) -> bool:
    """True if an expression is an argument of a bridge already."""
    above = context.parent(node)
    call = context.parent(above) if isinstance(above, cst.Arg) else None
    return isinstance(call, cst.Call) and context.name(call.func) in (
        BRIDGE,
        "optax_bridge.wrap_definition",
    )


def _is_compared(context: Context, node: cst.CSTNode) -> bool:
    """True if a class is asked for: `isinstance(x, optim.Adam)`, `type(x) is optim.Adam`."""
    for above in context.ancestors(node):
        if isinstance(above, cst.Comparison | cst.MatchCase):
            return True
        if isinstance(above, cst.Call):
            return last_name(above.func) in _CLASS_CHECKS
        if isinstance(above, cst.BaseStatement):
            return False
    return False
