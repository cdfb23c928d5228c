"""`optimizer.replicate()` becomes `flax.jax_utils.replicate(optimizer)` and a `pmean` in the step.

Before:

    optimizer = optimizer.replicate()

    def train_step(optimizer, batch):  # under jax.pmap(..., axis_name="batch")
        return optimizer.apply_gradient(gradients(optimizer, batch))

    optimizer = optimizer.unreplicate()

After:

    optimizer = flax.jax_utils.replicate(optimizer)

    def train_step(optimizer, batch):
        return optimizer.apply_gradients(
            grads=jax.lax.pmean(gradients(optimizer, batch), axis_name="batch")
        )

    optimizer = flax.jax_utils.unreplicate(optimizer)

The method also made each step average the gradients over the devices, and a checkpoint hold one
copy. It is rewritten only where the steps of what it returns are seen in the same file; otherwise,
and where a replicated optimizer is saved as it is, a person has to decide. The functions of
`jax_utils` stay as they are.
"""

import libcst as cst

from migration_guide.codemod.context import Context, keyword, separated
from migration_guide.codemod.kinds import OPTIMIZER, REPLICATED
from migration_guide.codemod.tree import argument

_LEFT = (
    "replicate() made each step average the gradients over the devices, and no step of this "
    "optimizer is seen here: write flax.jax_utils.replicate(optimizer), and "
    "grads = jax.lax.pmean(grads, 'batch') before .apply_gradients(grads=grads)"
)
_SAVED = (
    "of what replicate() returned one copy was saved: save flax.jax_utils.unreplicate(optimizer), "
    "and replicate what is restored"
)
_STEPS = ("apply_gradient", "optimize")
_SAVES = (
    "save_checkpoint",
    "save_checkpoint_multiprocess",
    "restore_checkpoint",
    "to_bytes",
    "from_bytes",
    "to_state_dict",
    "from_state_dict",
)
_METHODS = ("state_dict", "restore_state")


def rewrite_call(
    context: Context, original: cst.Call, updated: cst.Call
) -> cst.BaseExpression | None:
    """See the module."""
    func = original.func
    if context.name(func).startswith("flax.") and context.name(func).rpartition(".")[2] in _SAVES:
        if any(_is_replicated(context, arg.value) for arg in original.args):
            context.by_hand(original, _SAVED)
        return None
    if not isinstance(func, cst.Attribute) or not context.is_optimizer(func.value):
        return None
    assert isinstance(updated.func, cst.Attribute)
    holder, name = updated.func.value, func.attr.value
    if name in _METHODS and _is_replicated(context, func.value):
        context.by_hand(original, _SAVED)
    elif name == "replicate" and not any(arg.star for arg in original.args):
        if axis_of_steps(context) is None:
            context.by_hand(original, _LEFT)
            return None
        devices = argument(updated, 0, "devices")
        args = [cst.Arg(holder), *([keyword("devices", devices)] if devices is not None else [])]
        context.needed.add("flax")
        return updated.with_changes(
            func=cst.parse_expression("flax.jax_utils.replicate"), args=separated(args)
        )
    elif name == "unreplicate" and not original.args:
        context.needed.add("flax")
        return updated.with_changes(
            func=cst.parse_expression("flax.jax_utils.unreplicate"), args=[cst.Arg(holder)]
        )
    return None


def averaged(
    context: Context, holder: cst.BaseExpression, gradients: cst.BaseExpression
) -> cst.BaseExpression:
    """The gradients as a step takes them: averaged if the optimizer comes from `.replicate()`."""
    axis = axis_of_steps(context) if _is_replicated(context, holder) else None
    if axis is None:
        return gradients
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    args = [cst.Arg(gradients, comma=comma), keyword("axis_name", axis)]
    return cst.Call(context.dotted("jax.lax.pmean"), args)


def axis_of_steps(context: Context) -> cst.BaseExpression | None:
    """The axis over which this file's steps average; None where that cannot be told.

    Every step in the file must be one of a replicated optimizer, and all calls of `.replicate()`
    must name the same axis.
    """
    wanted = context.options.rules
    if wanted is not None and not {"replicate", "apply_gradient", "optimize"} <= wanted:
        return None  # half of it would be wrong
    methods = [
        call
        for call in context.analysis.facts.calls
        if isinstance(call.func, cst.Attribute)
        and OPTIMIZER in context.analysis.kind(call.func.value)
    ]
    names = {call: call.func.attr.value for call in methods if isinstance(call.func, cst.Attribute)}
    steps = [call for call, name in names.items() if name in _STEPS]
    here = len(context.analysis.applications)
    if not steps or len(steps) < here or here < context.analysis.project.steps:
        return None
    for call in steps:
        assert isinstance(call.func, cst.Attribute)
        if not _is_replicated(context, call.func.value):
            return None
    axes: dict[str, cst.BaseExpression] = {}
    for call, name in names.items():
        if name == "replicate":
            axis = argument(call, 1, "axis_name") or cst.SimpleString('"batch"')
            literal = isinstance(axis, cst.SimpleString) and axis.evaluated_value
            axes[str(literal or context.code(axis))] = axis
            if not literal:
                return None
    return next(iter(axes.values())) if len(axes) == 1 else None


def _is_replicated(context: Context, node: cst.BaseExpression) -> bool:
    return REPLICATED in context.analysis.kind(node)
