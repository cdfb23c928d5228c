"""`optimizer.replicate()` becomes `flax.jax_utils.replicate(optimizer)` and a `pmean` in the step.

Before:

    optimizer = optimizer.replicate()

    def train_step(optimizer, batch):  # under jax.pmap(..., axis_name="batch")
        return optimizer.apply_gradient(gradients(optimizer, batch))

    checkpoints.save_checkpoint("/run", optimizer, step)
    optimizer = checkpoints.restore_checkpoint("/run", optimizer)
    optimizer = optimizer.unreplicate()

After:

    optimizer = flax.jax_utils.replicate(optimizer)

    def train_step(optimizer, batch):  # under jax.pmap(..., axis_name="batch")
        return optimizer.apply_gradients(
            grads=jax.lax.pmean(gradients(optimizer, batch), axis_name="batch")
        )

    checkpoints.save_checkpoint("/run", flax.jax_utils.unreplicate(optimizer), step)
    optimizer = flax.jax_utils.replicate(
        optax_bridge.checkpoints.restore_checkpoint("/run", flax.jax_utils.unreplicate(optimizer))
    )
    optimizer = flax.jax_utils.unreplicate(optimizer)

The method also made each step average the gradients over the devices, and a checkpoint hold one
copy. It is rewritten only where the same file takes the steps of the replicated optimizer;
otherwise, and where an object that holds a replicated optimizer is saved, a person has to decide.
The functions of `jax_utils` stay as they are.
"""

import libcst as cst

from migration_guide.codemod.inference.facts import fields
from migration_guide.codemod.inference.kinds import (
    NOTHING,
    OPTIMIZER,
    REPLICATED,
    Instance,
    Kind,
    within,
)
from migration_guide.codemod.reading.tree import (
    argument,
    keyword,
    last_name,
    place_of,
    with_argument,
)
from migration_guide.codemod.writing.context import Context, New

_LEFT = (
    "replicate() made each step average the gradients over the devices, and this file does not "
    "show which steps, or over which axis: write flax.jax_utils.replicate(optimizer), and "
    "grads = jax.lax.pmean(grads, 'batch') before .apply_gradients(grads=grads)"
)
_SAVED = (
    "a replicated optimizer was saved as one copy: save flax.jax_utils.unreplicate(optimizer), "
    "and replicate the restored one"
)
_DEEPEST = 5  # objects in one another
_STEPS = ("apply_gradient", "optimize")
_REPLICATE, _UNREPLICATE = "flax.jax_utils.replicate", "flax.jax_utils.unreplicate"
# Function of Flax that saves or restores -> where what it saves, or its template, stands.
_SAVES = {
    "save_checkpoint": (1, "target"),
    "save_checkpoint_multiprocess": (1, "target"),
    "to_bytes": (0, "target"),
    "to_state_dict": (0, "target"),
}
_RESTORES = {
    "restore_checkpoint": (1, "target"),
    "from_bytes": (0, "target"),
    "from_state_dict": (0, "target"),
}
# Methods -> whether what they return is replicated again.
_METHODS = {"state_dict": False, "restore_state": True}
RUNS_AFTER = ("checkpoint_folder", "gone_names", "restoring", "state_dict")


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """See the module."""
    func = original.func
    home, _, last = context.name(func).rpartition(".")
    if home.startswith("flax.") and last in (*_SAVES, *_RESTORES):
        return _rewrite_save(context, original, updated, last)
    if not isinstance(func, cst.Attribute) or not context.is_optimizer(func.value):
        return None
    assert isinstance(updated.func, cst.Attribute)
    holder, name = updated.func.value, func.attr.value
    if name in _METHODS and _is_replicated(context, func.value):
        if _replicated_here(context, func.value) is False:
            return None
        return _method(context, original, updated, name)
    if name == "replicate" and not any(arg.star for arg in original.args):
        if axis_of_steps(context) is None:
            context.by_hand(original, _LEFT)
            return None
        devices = argument(updated, 0, "devices")
        args = [cst.Arg(holder), *([keyword("devices", devices)] if devices is not None else [])]
        context.needed.add("flax")
        return updated.with_changes(func=cst.parse_expression(_REPLICATE), args=args)
    elif name == "unreplicate" and not original.args:
        context.needed.add("flax")
        return updated.with_changes(func=cst.parse_expression(_UNREPLICATE), args=[cst.Arg(holder)])
    return None


def _rewrite_save(
    context: Context, original: cst.Call, updated: cst.Call, name: str
) -> cst.BaseExpression | None:
    """A function that saves one copy, or restores into one and replicates it."""
    place = place_of(original, *(_SAVES | _RESTORES)[name])
    saved = None if place is None else original.args[place].value
    if place is None or saved is None or not _is_within(context, context.analysis.kind(saved)):
        return None
    if _is_replicated(context, saved) and _replicated_here(context, saved) is False:
        return None
    new = _one_copy(context, saved, updated.args[place].value, deep=name in _SAVES)
    if new is None or axis_of_steps(context) is None:
        context.by_hand(original, _SAVED)
        return None
    call = with_argument(updated, place, new)
    return call if name in _SAVES else _call_function(context, _REPLICATE, call)


def _method(
    context: Context, original: cst.Call, updated: cst.Call, name: str
) -> cst.BaseExpression | None:
    """`optimizer.state_dict()` and `.restore_state(d)`, which are functions by now."""
    if isinstance(updated.func, cst.Attribute) and updated.func.attr.value == name:
        return None  # left alone by its own rule
    assert isinstance(original.func, cst.Attribute)
    sure = _replicated_here(context, original.func.value)
    if not sure or axis_of_steps(context) is None:
        context.by_hand(original, _SAVED)
        return None
    copy = _call_function(context, _UNREPLICATE, updated.args[0].value)
    call = with_argument(updated, 0, copy)
    return _call_function(context, _REPLICATE, call) if _METHODS[name] else call


def _one_copy(
    context: Context, original: cst.BaseExpression, updated: cst.BaseExpression, deep: bool
) -> cst.BaseExpression | None:
    """An expression with one copy of each replicated optimizer; None if one is unknown."""
    if _is_replicated(context, original):
        sure = _replicated_here(context, original)
        if sure:
            return _call_function(context, _UNREPLICATE, updated)
        return updated if sure is False else None
    if not _is_within(context, context.analysis.kind(original)):
        return updated
    if not deep or not isinstance(original, cst.Dict | cst.Tuple | cst.List):
        return None
    assert isinstance(updated, cst.Dict | cst.Tuple | cst.List)
    elements = []
    for old, new in zip(original.elements, updated.elements, strict=True):
        value = _one_copy(context, old.value, new.value, deep)
        if value is None:
            return None
        elements.append(new.with_changes(value=value))
    return updated.with_changes(elements=elements)


def _replicated_here(context: Context, node: cst.BaseExpression) -> bool | None:
    """True if an optimizer is replicated where it is used; None where that cannot be told."""
    if isinstance(node, cst.Call) and last_name(node.func) == "replicate":
        return True
    if not isinstance(node, cst.Name):
        return None if _is_replicated(context, node) else False
    scope = context.analysis.scopes.get(node)
    above = [
        value
        for target, value in context.analysis.facts.assignments
        if isinstance(target, cst.Name)
        and target.value == node.value
        and context.analysis.scopes.get(target) is scope
        and context.line(target) < context.line(node)
    ]
    for value in sorted(above, key=context.line, reverse=True):
        if not _is_replicated(context, value):
            return False
        if isinstance(value, cst.Call) and last_name(value.func) == "replicate":
            return True
    return None


def _call_function(context: Context, function: str, value: cst.BaseExpression) -> cst.Call:
    context.needed.add("flax")
    return cst.Call(
        cst.ensure_type(cst.parse_expression(function), cst.Attribute), [cst.Arg(value)]
    )


def _is_within(context: Context, kind: Kind, deep: int = 0) -> bool:
    """True if a replicated optimizer is in a value, at any depth that is known."""
    for atom in within(kind) if deep < _DEEPEST else ():
        names = fields(atom.node) if isinstance(atom, Instance) else ()
        inside = [context.analysis.fields.get(name, NOTHING) for name in names]
        if atom == REPLICATED or any(_is_within(context, k, deep + 1) for k in inside):
            return True
    return False


def average_gradients(
    context: Context, holder: cst.BaseExpression, gradients: cst.BaseExpression
) -> cst.BaseExpression:
    """The gradients as a step takes them: averaged if the optimizer comes from `.replicate()`."""
    axis = axis_of_steps(context) if _is_replicated(context, holder) else None
    if axis is None:
        return gradients
    args = [cst.Arg(gradients), keyword("axis_name", axis)]
    return cst.Call(context.reference("jax.lax.pmean"), args)


def axis_of_steps(context: Context) -> cst.BaseExpression | None:
    """The axis over which this file's steps average; None where that cannot be told."""
    selected = context.options.rules
    if selected is not None and not {"replicate", "apply_gradient", "optimize"} <= selected:
        return None  # half of it would be wrong
    methods = [
        call
        for call in context.analysis.facts.calls
        if isinstance(call.func, cst.Attribute)
        and OPTIMIZER in context.analysis.kind(call.func.value)
    ]
    names = {call: call.func.attr.value for call in methods if isinstance(call.func, cst.Attribute)}
    steps = [call for call, name in names.items() if name in _STEPS]
    applied = len(context.analysis.applications)
    if not steps or len(steps) < applied or applied < context.analysis.project.steps:
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
