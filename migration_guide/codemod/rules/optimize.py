# pyright: strict
"""`optimizer.optimize(loss_fn)` becomes a gradient and a step.

Before:

    optimizer, loss = optimizer.optimize(loss_fn, learning_rate=lr)

After:

    loss, grads = jax.value_and_grad(loss_fn)(optimizer.params)
    optimizer = optimizer.apply_gradients(grads=grads, learning_rate=lr)

As for `compute_gradient`, the names that take the result show whether there is auxiliary output.
"""

import libcst as cst

from migration_guide.codemod.reading.tree import (
    keyword,
    keyword_of,
    method_call,
    with_keyword,
)
from migration_guide.codemod.rules.compute_gradient import unpacked_call, value_and_grad
from migration_guide.codemod.rules.hyper_params import port_name
from migration_guide.codemod.rules.replicate import average_gradients
from migration_guide.codemod.writing import optax_alone
from migration_guide.codemod.writing.context import Context, Line, New

INSTEAD = (
    "loss, grads = jax.value_and_grad(loss_fn)(optimizer.params), then "
    "optimizer.apply_gradients(grads=grads)"
)


def rewrite_statement(
    context: Context, original: Line, updated: Line
) -> cst.FlattenSentinel[Line] | None:
    """See the module."""
    call, targets = unpacked_call(original)
    if call is None or not _can(context, call, targets) or targets is None:
        return None
    assign = updated.body[0]
    assert isinstance(assign, cst.Assign) and isinstance(assign.value, cst.Call)
    new_call = assign.value
    assert isinstance(new_call.func, cst.Attribute) and isinstance(call.func, cst.Attribute)
    holder = new_call.func.value
    gradients = cst.Name(context.fresh_name("grads"))
    loss: cst.BaseExpression = targets[1]
    if len(targets) == 3:
        loss = cst.Tuple([cst.Element(targets[1]), cst.Element(targets[2])])
    both = cst.Tuple([cst.Element(loss), cst.Element(gradients)], lpar=[], rpar=[])
    value = value_and_grad(context, new_call.args[0].value, holder, len(targets) == 3)
    first = cst.SimpleStatementLine(
        [cst.Assign([cst.AssignTarget(both)], value)], leading_lines=updated.leading_lines
    )
    hyper_params: list[cst.Arg] = []
    if len(call.args) > 1 and context.is_optax_alone:
        holder = optax_alone.with_hyper_params(context, holder, new_call.args[1:])
        new_call = new_call.with_changes(args=new_call.args[:1])
    for arg in new_call.args[1:]:
        name = port_name(context, keyword_of(arg))
        assert name is not None
        hyper_params.append(with_keyword(arg, name))
    gradients = average_gradients(context, call.func.value, gradients)
    step = cst.Call(
        cst.Attribute(holder, cst.Name("apply_gradients")),
        [keyword("grads", gradients), *hyper_params],
    )
    holder_name = targets[0]
    assert isinstance(holder_name, cst.BaseAssignTargetExpression)
    second = updated.with_changes(
        body=[cst.Assign([cst.AssignTarget(holder_name)], step)], leading_lines=[]
    )
    return cst.FlattenSentinel([first, second])


def rewrite_call(context: Context, original: cst.Call, _: cst.Call) -> New:
    """Rewrites a call whose result is not unpacked by the same statement."""
    holder, method = method_call(original)
    if holder is not None and method == "optimize" and context.is_optimizer(holder):
        call, targets = unpacked_call(context.statement(original))
        if call is not original or not _can(context, original, targets):
            context.by_hand(original, INSTEAD)
    return None


def _can(context: Context, call: cst.Call, targets: list[cst.BaseExpression] | None) -> bool:
    holder, method = method_call(call)
    if holder is None or method != "optimize" or not context.is_optimizer(holder):
        return False
    if targets is None or len(targets) not in (2, 3):
        return False
    if not call.args or call.args[0].keyword is not None or call.args[0].star:
        return False
    names = map(keyword_of, call.args[1:])
    return all(name and port_name(context, name) is not None for name in names)
