"""Moves kinds into the parameters and fields of calls, and infers them from use.

In `x.apply_gradient(g)`, x is an optimizer, and its maker a definition. Use adds nothing to
expressions of a known kind, so `learn` runs after all other inference.
"""

from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from migration_guide.codemod.inference.expressions import Expressions
from migration_guide.codemod.inference.facts import Callable_, fields, parameters
from migration_guide.codemod.inference.kinds import (
    DEFINITION,
    OPTIMIZER,
    OWN_GROUPS,
    Function,
    Instance,
    Items,
    Kind,
    Several,
    item,
    join_kinds,
    only,
)
from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.names import shared_name
from migration_guide.codemod.reading.tree import argument, last_name

_KNOWN_LIBRARIES = ("flax", "jax", "optax", "numpy", "optax_bridge", "legacy_optim")


def assign_arguments(a: Expressions, node: cst.Call) -> None:
    """Moves the arguments of a call into parameters and fields."""
    last = last_name(node.func)
    if last == "partial" and node.args:
        _assign_parameters(a, a.kind(node.args[0].value), node.args[1:])
    if last == "scan" and len(node.args) > 1:
        _assign_parameters(a, a.kind(node.args[0].value), [node.args[1]])
    if last == "while_loop" and len(node.args) > 2:
        for function in node.args[:2]:
            _assign_parameters(a, a.kind(function.value), [node.args[2]])
    if last == "fori_loop" and len(node.args) > 3:
        _assign_parameters(a, a.kind(node.args[2].value), [node.args[0], node.args[3]])
    if last == "cond" and len(node.args) > 3:
        for function in node.args[1:3]:
            _assign_parameters(a, a.kind(function.value), node.args[3:])
    if last in ("append", "add") and isinstance(node.func, cst.Attribute) and len(node.args) == 1:
        inside = a.kind(node.args[0].value)
        if inside:
            a.assign(node.func.value, frozenset([Items(inside)]))
    if last in ("map", "filter") and a.is_plain_name(node.func):
        for atom in a.kind(node.args[0].value) if node.args else ():
            if isinstance(atom, Function):
                free = parameters(atom.node)[atom.bound :]
                for parameter, arg in zip(free, node.args[1:], strict=False):
                    a.assign_parameter(atom.node, parameter, item(a.kind(arg.value)))
    is_map = last in ("tree_map", "map") and a.names.of(node.func) is not None
    if is_map and len(node.args) > 1 and argument(node, None, "is_leaf") is not None:
        for atom in a.kind(node.args[0].value):
            if isinstance(atom, Function) and len(parameters(atom.node)) == 1:
                leaf = _leaves(a.kind(node.args[1].value))
                a.assign_parameter(atom.node, parameters(atom.node)[0], leaf)
    _assign_parameters(a, a.kind(node.func), node.args)
    for name, value in fields_filled(a, node):
        a.assign_field(name, a.kind(value))
    for atom in a.kind(node.func):
        if isinstance(atom, Instance):
            for method in a.facts.methods.get("__init__", ()):
                if a.facts.owner.get(method) is atom.node:
                    _assign_parameters(a, frozenset([Function(method, bound=1)]), node.args)


def assign_decorated(a: Expressions, function: Callable_) -> None:
    """Moves a function into the first parameter of each function that decorates it."""
    decorators = function.decorators if isinstance(function, cst.FunctionDef) else ()
    for decorator in decorators:
        for atom in a.kind(decorator.decorator):
            if isinstance(atom, Function):
                for parameter in parameters(atom.node)[atom.bound :][:1]:
                    a.assign_parameter(atom.node, parameter, frozenset([Function(function)]))


def _parameter_kinds(a: Expressions, node: cst.Call) -> Iterator[tuple[cst.BaseExpression, Kind]]:
    """Yields a call's arguments, each with the kind of the parameter or field that it goes into."""
    for value, function, parameter in _parameters(a.kind(node.func), node.args):
        yield value, a.parameter_kind(function, parameter)
    for name, value in fields_filled(a, node):
        yield value, a.field_kind(name)


def fields_filled(a: Expressions, node: cst.Call) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yields the fields that a call fills, each with the value, where it makes an object."""
    last = last_name(node.func)
    by_name = last in ("replace", "_replace", "cls") or last[:1].isupper()
    if by_name and a.names.entry(node.func) is None:
        yield from ((arg.keyword.value, arg.value) for arg in node.args if arg.keyword is not None)
    for atom in a.kind(node.func):
        if isinstance(atom, Instance):
            for name, arg in zip(fields(atom.node), node.args, strict=False):
                if arg.keyword is None and not arg.star:
                    yield name, arg.value


def _leaves(kind: Kind) -> Kind:
    """Returns the kind of a tree's leaves, at any depth."""
    containers = frozenset(atom for atom in kind if isinstance(atom, Items | Several))
    if not containers:
        return kind
    return join_kinds([kind - containers, _leaves(item(containers))])


def _assign_parameters(a: Expressions, kind: Kind, args: Sequence[cst.Arg]) -> None:
    for value, function, parameter in _parameters(kind, args):
        a.assign_parameter(function, parameter, a.kind(value))


def _parameters(
    kind: Kind, args: Sequence[cst.Arg]
) -> Iterator[tuple[cst.BaseExpression, Callable_, cst.Param]]:
    """Yields the arguments of functions, each with the parameter that it goes into."""
    for atom in kind:
        if not isinstance(atom, Function):
            continue
        names = parameters(atom.node)
        by_name = {p.name.value: p for p in names}
        # `f.bound` of a function in which `self` was found by attribute on a plain module is
        # harmless: it only shifts what is guessed, and what is guessed must agree with use.
        positional = names[atom.bound :]
        for arg in args:
            if arg.star:
                break
            if arg.keyword is None:
                if not positional:
                    break
                parameter, *positional = positional
            else:
                parameter = by_name.get(arg.keyword.value)
            if parameter is not None:
                yield arg.value, atom.node, parameter


def learn(a: Expressions, applications: Iterable[cst.Call]) -> None:
    """Infers kinds from the uses in the module."""
    for target, value in a.facts.assignments:
        _infer_from_target(a, target, value)
    for call in a.facts.calls:
        for value, kind in _parameter_kinds(a, call):
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
    """Infers that the maker of an expression, which is used as an optimizer, is a definition."""
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
    """Infers that an expression is a definition, as which it is used."""
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
        a.shared.expected.setdefault(shared_name(name), what)


def _is_external(a: Expressions, name: str) -> bool:
    """True if an imported name comes from a module that this run does not see."""
    parts = name.split(".")
    if parts[0] in _KNOWN_LIBRARIES or imports.is_foreign(name):
        return False
    return not any(module in a.project.modules for module in parts[:-1])


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
