# pyright: strict
"""`optimizer.compute_gradient(loss_fn)` becomes `jax.value_and_grad(loss_fn)(optimizer.params)`.

Before:

    loss, grad = optimizer.compute_gradient(loss_fn)
    loss, aux, grad = optimizer.compute_gradient(loss_fn)

After:

    loss, grad = jax.value_and_grad(loss_fn)(optimizer.params)
    (loss, aux), grad = jax.value_and_grad(loss_fn, has_aux=True)(optimizer.params)

Whether there is auxiliary output shows in the names that take the result. Where it is not taken
apart on the spot, it is left for a person.
"""

import libcst as cst

from migration_guide.codemod.reading.tree import attribute, keyword, method_call
from migration_guide.codemod.writing.context import Context, Line, New

_NAMES = ("compute_gradient", "compute_gradients")


def rewrite_statement(context: Context, original: Line, updated: Line) -> Line | None:
    """See the module."""
    call, targets = unpacked_call(original)
    if call is None or not _applies(context, call) or len(call.args) != 1 or call.args[0].keyword:
        return None
    assign = updated.body[0]
    if targets is None or len(targets) not in (2, 3) or not isinstance(assign, cst.Assign):
        return None
    new_call = assign.value
    assert isinstance(new_call, cst.Call) and isinstance(new_call.func, cst.Attribute)
    value = value_and_grad(context, new_call.args[0].value, new_call.func.value, len(targets) == 3)
    new = assign.with_changes(value=value)
    if len(targets) == 3:
        pair = cst.Tuple([cst.Element(targets[0]), cst.Element(targets[1])])
        both = cst.Tuple([cst.Element(pair), cst.Element(targets[2])], lpar=[], rpar=[])
        new = new.with_changes(targets=[cst.AssignTarget(both)])
    return updated.with_changes(body=[new])


def rewrite_call(context: Context, original: cst.Call, _: cst.Call) -> New:
    """Rewrites a call whose result is not unpacked by the same statement."""
    if not _applies(context, original):
        return None
    call, targets = unpacked_call(context.statement(original))
    if call is not original or targets is None or len(targets) not in (2, 3):
        context.by_hand(
            original,
            "jax.value_and_grad(loss_fn)(optimizer.params), with has_aux=True if the loss "
            "function returns more",
        )
    return None


def unpacked_call(
    statement: cst.CSTNode,
) -> tuple[cst.Call | None, list[cst.BaseExpression] | None]:
    """Returns the call on the right of `a, b = f(...)`, and a and b; None for other statements."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None, None
    assign = statement.body[0]
    if not isinstance(assign, cst.Assign) or not isinstance(assign.value, cst.Call):
        return None, None
    target = assign.targets[0].target
    if len(assign.targets) != 1 or not isinstance(target, cst.Tuple):
        return assign.value, None
    if any(isinstance(e, cst.StarredElement) for e in target.elements):
        return assign.value, None
    return assign.value, [e.value for e in target.elements]


def value_and_grad(
    context: Context, loss_fn: cst.BaseExpression, holder: cst.BaseExpression, aux: bool
) -> cst.Call:
    """`jax.value_and_grad(loss_fn)(holder.params)`."""
    args = [cst.Arg(loss_fn), *([keyword("has_aux", cst.Name("True"))] if aux else [])]
    function = cst.Call(context.reference("jax.value_and_grad"), args)
    return cst.Call(function, [cst.Arg(attribute(holder, "params"))])


def _applies(context: Context, call: cst.Call) -> bool:
    holder, method = method_call(call)
    return holder is not None and method in _NAMES and context.is_optimizer(holder)
