# pyright: strict
"""Infers kinds from use: in `x.apply_gradient(g)`, x is an optimizer, and its maker a definition.

It adds nothing to expressions of another kind, so it runs after all other inference.
"""

from collections.abc import Iterable

import libcst as cst

from migration_guide.codemod.inference import flow
from migration_guide.codemod.inference.expressions import Expressions
from migration_guide.codemod.inference.kinds import (
    DEFINITION,
    OPTIMIZER,
    OWN_GROUPS,
    Function,
    Instance,
    Kind,
    only,
)
from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.tree import last_name

_KNOWN_LIBRARIES = ("flax", "jax", "optax", "numpy", "optax_bridge", "legacy_optim")


def learn(a: Expressions, applications: Iterable[cst.Call]) -> None:
    """Infers kinds from the uses in the module.

    Args:
      a: the analysis of the module.
      applications: the calls of methods named `apply_gradient`.
    """
    for target, value in a.facts.assignments:
        _infer_from_target(a, target, value)
    for call in a.facts.calls:
        for value, kind in flow.parameter_kinds(a, call):
            _infer_from_argument(a, value, kind)
    for function in a.facts.functions:
        expected = a.project.expected.get(a.function_name(function))
        if expected is not None:
            for value in a.facts.returns[function]:
                (expect_optimizer if expected == OPTIMIZER else expect_definition)(a, value)
    for call in applications:
        _infer_from_step(a, call)


def _infer_from_step(a: Expressions, call: cst.Call) -> None:
    """`x.apply_gradient(...)` is the surest sign that x is an optimizer."""
    assert isinstance(call.func, cst.Attribute)
    holder = call.func.value
    if a.own_classes or a.project.own_apply_gradient or a.kind(holder):
        return
    if not (a.uses_optim or a.project.uses_optim):
        return
    if last_name(holder) == "target":
        return  # parameters are no optimizer
    if sum(arg.keyword is None and not arg.star for arg in call.args) > 1:
        return  # a definition's method of the same name takes four
    if isinstance(holder, cst.Name | cst.Attribute | cst.Subscript):
        if not a.from_unknown(holder):
            a.assign(holder, only(OPTIMIZER))
    elif isinstance(holder, cst.Call):
        expect_optimizer(a, holder)


def _infer_from_target(
    a: Expressions, target: cst.BaseExpression, value: cst.BaseExpression
) -> None:
    """`opt = state.opt`: the kind of the variable holds for the field, too."""
    kind = a.kind(target) - {OWN_GROUPS}
    if isinstance(value, cst.Call):
        if OPTIMIZER in kind:
            expect_optimizer(a, value)
        elif kind == only(DEFINITION):
            expect_definition(a, value)
        return
    names = isinstance(target, cst.Name) and isinstance(value, cst.Attribute)
    if names and not a.kind(value) and a.names.of(value) is None and kind == only(OPTIMIZER):
        a.assign(value, kind)


def expect_optimizer(a: Expressions, value: cst.BaseExpression, deep: int = 0) -> None:
    """An expression that use shows to be an optimizer: what made it is a definition."""
    if not isinstance(value, cst.Call) or deep > 4:
        return
    maker = value.func
    if isinstance(maker, cst.Attribute) and maker.attr.value == "create":
        # An Optimizer has no `create`: in `x = x.create(params)`, x was a definition.
        undecided = not a.kind(maker.value) - {OPTIMIZER, OWN_GROUPS}
        positional = bool(value.args) and not value.args[0].keyword
        if positional and undecided and a.names.of(maker.value) is None:
            expect_definition(a, maker.value)
        return
    _expect_result(a, value, OPTIMIZER, deep)


def expect_definition(a: Expressions, value: cst.BaseExpression, deep: int = 0) -> None:
    """An expression that use shows to be a definition."""
    if a.kind(value) - {OPTIMIZER, OWN_GROUPS} or deep > 4:
        return
    if isinstance(value, cst.Call):
        name = a.names.of(value.func)
        if name is not None and _is_external(a, name):
            a.mark(a.external, value)
        else:
            _expect_result(a, value, DEFINITION, deep)
    else:
        a.assign(value, only(DEFINITION))


def _expect_result(a: Expressions, call: cst.Call, what: str, deep: int) -> None:
    expect = expect_optimizer if what == OPTIMIZER else expect_definition
    if any(not isinstance(atom, Function) for atom in a.kind(call.func)):
        return
    for atom in a.kind(call.func):
        if isinstance(atom, Function):
            for returned in a.facts.returns.get(atom.node, ()):
                expect(a, returned, deep + 1)
    name = a.names.of(call.func)
    if name is not None and not _is_external(a, name):
        a.shared.expected.setdefault(".".join(name.split(".")[-2:]), what)


def _is_external(a: Expressions, name: str) -> bool:
    """True if an imported name comes from a module that this run does not see."""
    parts = name.split(".")
    if parts[0] in _KNOWN_LIBRARIES or imports.is_foreign(name):
        return False
    return not any(part in a.project.modules for part in parts[:-1])


def _infer_from_argument(a: Expressions, value: cst.BaseExpression, kind: Kind) -> None:
    """Infers that a value is an optimizer where nothing else may be passed."""
    if _definite(kind) != only(OPTIMIZER) or a.names.of(value) is not None:
        return
    if _definite(a.kind(value)):
        return
    if isinstance(value, cst.Name | cst.Attribute | cst.Subscript) and not a.from_unknown(value):
        a.assign(value, only(OPTIMIZER))


def _definite(kind: Kind) -> Kind:
    """Without the methods and classes that are guessed by their name alone."""
    sure = frozenset(atom for atom in kind if not isinstance(atom, Function | Instance))
    return sure - {OWN_GROUPS}
