# pyright: strict
"""A rate that each step computes from the optimizer's own step becomes the optimizer's schedule.

Before:

    optimizer = optim.Momentum(beta=0.9).create(params)

    def train_step(optimizer, batch):
        lr = learning_rate_fn(optimizer.state.step)
        return optimizer.apply_gradient(grads(optimizer, batch), learning_rate=lr), lr

After:

    optimizer = ...momentum(learning_rate=learning_rate_fn, decay=0.9)...

    def train_step(optimizer, batch):
        lr = learning_rate_fn(optimizer.step)
        return optimizer.apply_gradients(grads=grads(optimizer, batch)), lr

Only where it is provably the same: one definition without a rate of its own, one step, a function
of the module that is defined once and before the definition, and the step of the very optimizer
that takes the gradient. Otherwise the rate stays an argument of the step, which is always the same.
A variable that nothing but the step has read goes.
"""

from typing import NamedTuple

import libcst as cst

from migration_guide.codemod.inference.kinds import CLASS
from migration_guide.codemod.reading.tree import keyword, keyword_of, last_name, walk
from migration_guide.codemod.writing import constants
from migration_guide.codemod.writing.context import Context, New

RUNS_AFTER = ("apply_gradient", "constructors", "dead_imports")


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """See the module."""
    scheduled = context.once(provable)
    if scheduled is None:
        return None
    definition, step, function = scheduled
    if original is step and last_name(updated.func) == "apply_gradients":
        return updated.with_changes(
            args=[updated.args[0].with_changes(comma=cst.MaybeSentinel.DEFAULT)]
        )
    if context.options.optax_alone and context.is_optax_alone:
        return None  # the rule for constructors has it
    if original is definition and not any(_is_rate(arg) for arg in updated.args):
        return updated.with_changes(
            args=[keyword("learning_rate", cst.Name(function)), *updated.args]
        )
    return None


def rewrite_module(
    context: Context, original: cst.Module, updated: cst.Module
) -> cst.Module | None:
    """Removes the assignment of a rate that nothing reads any longer."""
    del original
    scheduled = context.once(provable)
    rate = scheduled.step.args[1].value if scheduled else None
    if scheduled is None or not isinstance(rate, cst.Name):
        return None
    for function in walk(updated):
        if not isinstance(function, cst.FunctionDef) or _uses(function, rate.value) != 1:
            continue
        for line in walk(function):
            is_line = isinstance(line, cst.SimpleStatementLine)
            if is_line and _is_rate_of(scheduled, line, rate.value):
                removed = updated.deep_remove(line)
                assert isinstance(removed, cst.Module)
                return removed
    return None


def _uses(function: cst.FunctionDef, variable: str) -> int:
    """Counts the uses of a name in a function, for any variable."""
    keywords = {id(n.keyword) for n in walk(function) if isinstance(n, cst.Arg) and n.keyword}
    names = (node for node in walk(function) if isinstance(node, cst.Name))
    return sum(node.value == variable and id(node) not in keywords for node in names)


def _is_rate_of(scheduled: "Scheduled", line: cst.SimpleStatementLine, variable: str) -> bool:
    """True if a line assigns the schedule's value to the variable, and does and says no more."""
    if any(empty.comment for empty in line.leading_lines) or line.trailing_whitespace.comment:
        return False
    (statement, *others) = line.body
    if others or not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return False
    target, value = statement.targets[0].target, statement.value
    computed = isinstance(value, cst.Call) and last_name(value.func) == scheduled.function
    return computed and isinstance(target, cst.Name) and target.value == variable


class Scheduled(NamedTuple):
    """The one definition, the one step and the name of the schedule."""

    definition: cst.Call
    step: cst.Call
    function: str


def provable(context: Context) -> Scheduled | None:
    """Returns the assignment that becomes a schedule, or None."""
    analysis = context.analysis
    definitions, steps = analysis.constructions, analysis.applications
    if len(definitions) != 1 or len(steps) != 1 or analysis.project.steps > 1:
        return None
    if analysis.program.reads_hyper_params:
        return None
    ((definition, entry),), (step,) = definitions, steps
    if not any(hp.legacy == "learning_rate" for hp in entry.hyper_params):
        return None
    if any(arg.keyword is None or _is_rate(arg) for arg in definition.args):
        return None  # by position, the first argument is the rate
    values = [*analysis.facts.calls, *analysis.facts.attributes]
    if any(CLASS in analysis.kind(c) for c in values if c is not definition.func):
        return None  # definitions that are chosen at run time
    if any(last_name(a) in ("optimize", "replicate") for a in analysis.facts.attributes):
        return None
    assert isinstance(step.func, cst.Attribute)
    if len(step.args) != 2 or step.args[0].keyword is not None or not _is_rate(step.args[1]):
        return None
    rate = step.args[1].value
    if isinstance(rate, cst.Name):
        rate = constants.assigned_value(context.analysis, rate)
    holder = step.func.value
    if not isinstance(rate, cst.Call) or len(rate.args) != 1 or not isinstance(rate.func, cst.Name):
        return None
    if (
        not isinstance(holder, cst.Name)
        or context.code(rate.args[0].value) != f"{holder.value}.state.step"
    ):
        return None
    defined = _is_fixed(context, rate.func, place=definition)
    assigned_once = len(analysis.names.assignments(holder)) == 1
    if not (defined and assigned_once):
        return None
    return Scheduled(definition, step, rate.func.value)


def _is_rate(arg: cst.Arg) -> bool:
    return keyword_of(arg) == "learning_rate"


def _is_fixed(context: Context, function: cst.Name, place: cst.Call) -> bool:
    """True if a name is bound once, in the module itself, above a place."""
    assignments = context.analysis.names.assignments(function)
    if len(assignments) != 1 or not assignments[0].scope.is_module:
        return False
    node = getattr(assignments[0], "node", None)
    if not isinstance(node, cst.FunctionDef | cst.Name):
        return False
    return context.line(node) < context.line(place)
