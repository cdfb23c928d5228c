# pyright: strict
"""`definition.create(params)` becomes `TrainState.create(params=params, tx=definition)`.

Before:

    optimizer = definition.create(params)
    optimizer = definition.create(params, focus=traversal)
    optimizer = jax.jit(definition.create, backend="cpu")(params)

After:

    optimizer = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=definition)
    optimizer = optax_bridge.TrainState.create(
        apply_fn=None, params=params, tx=optax_bridge.multi_optimizer((traversal, definition))
    )
    optimizer = jax.jit(
        lambda params: optax_bridge.TrainState.create(apply_fn=None, params=params, tx=definition),
        backend="cpu"
    )(params)

The optimizer keeps its place and its name. A focus is a group of its own; all other leaves stay as
they are.
"""

import libcst as cst

from migration_guide.codemod.inference.kinds import ARRAY, LEGACY
from migration_guide.codemod.reading.tree import keyword, keyword_of, with_keyword
from migration_guide.codemod.writing import optax_alone, public_optax
from migration_guide.codemod.writing.context import Context, New

_MIXED = "the rest of the program does"
# Where a lambda may stand without brackets.
_HOLD_VALUES = (
    cst.AnnAssign,
    cst.Arg,
    cst.Assign,
    cst.DictElement,
    cst.Element,
    cst.Param,
    cst.Return,
)


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """See the module."""
    func = original.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "create":
        return None
    if not context.is_definition(func.value):
        return None
    assert isinstance(updated.func, cst.Attribute)
    tx = _transformation(context, func, updated.func)
    params, focus = None, None
    for arg in updated.args:
        name = keyword_of(arg) or ("focus" if params else "target")
        if arg.star or name not in ("target", "focus"):
            context.by_hand(
                original, "optax_bridge.TrainState.create(apply_fn=None, params=..., tx=...)"
            )
            return None
        params, focus = (arg, focus) if name == "target" else (params, arg)
    if params is None:
        return None
    if focus is not None and not (
        isinstance(focus.value, cst.Name) and focus.value.value == "None"
    ):
        if context.is_optax_alone and not public_optax.why_no_partition(context.analysis, original):
            tx = optax_alone.partition(context, [(focus.value, tx)])
        else:
            if context.options.optax_alone:
                why = public_optax.why_no_partition(context.analysis, original) or _MIXED
                context.remark(original, f"stays on optax_bridge: {why}")
            group = cst.Tuple([cst.Element(focus.value), cst.Element(tx)])
            tx = cst.Call(context.reference("optax_bridge.multi_optimizer"), [cst.Arg(group)])
    args = [
        keyword("apply_fn", cst.Name("None")),
        with_keyword(params, "params"),
        keyword("tx", tx),
    ]
    if isinstance(params.comma, cst.Comma) and params.comma.whitespace_after.empty:
        args[1] = args[1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    last = updated.args[-1]
    if not isinstance(last.comma, cst.Comma):
        args[-1] = args[-1].with_changes(whitespace_after_arg=last.whitespace_after_arg)
        args[1] = args[1].with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))
    old = original.args[updated.args.index(params)].value
    function = train_state(context, original, old)
    new = updated.with_changes(func=function, args=args)
    context.keep_comments(original, new)
    return new


def rewrite_attribute(context: Context, original: cst.Attribute, updated: cst.Attribute) -> New:
    """The bound method as a value: handed to `jax.jit`, or assigned."""
    if original.attr.value != "create" or not context.is_definition(original.value):
        return None
    if context.call_of(original) is not None:
        return None
    above = context.parent(original)
    around = context.parent(above) if above is not None else None
    has_focus = isinstance(around, cst.Call) and "focus" in map(keyword_of, around.args)
    if has_focus or not isinstance(above, _HOLD_VALUES):
        context.by_hand(
            original, "write lambda params: optax_bridge.TrainState.create(...) in its place"
        )
        return None
    definition = context.code(_transformation(context, original, updated))
    function = context.code(train_state(context, original, None))
    return context.source(
        f"lambda params: {function}(apply_fn=None, params=params, tx={definition})"
    )


def _transformation(
    context: Context, original: cst.Attribute, updated: cst.Attribute
) -> cst.BaseExpression:
    """The transformation of `definition.create`; a definition that stays legacy is bridged."""
    if LEGACY in context.analysis.kind(original.value):
        return cst.Call(context.reference("optax_bridge.from_legacy"), [cst.Arg(updated.value)])
    return updated.value


def train_state(
    context: Context, original: cst.CSTNode, params: cst.BaseExpression | None
) -> cst.BaseExpression:
    """The `create` of the class that takes the optimizer's place."""
    if context.is_optax_alone:
        if params is None or ARRAY not in context.analysis.kind(params):
            context.needed.add("flax.training.train_state")
            return cst.parse_expression(f"{optax_alone.TRAIN_STATE}.create")
        context.remark(
            original,
            "stays on optax_bridge: these parameters are an array, and Flax's own TrainState takes "
            "only dicts",
        )
    return context.reference("optax_bridge.TrainState.create")
