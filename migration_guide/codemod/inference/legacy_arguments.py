# pyright: strict
"""Keeps definitions legacy that go into one that stays legacy, such as a user's own class.

A call that makes such a definition is followed back to the sources of its arguments: through
variables, loops, containers, parameters, fields and functions, also those of other files. So is a
callee that is a class at some times: the functions that are called at other times make definitions
as the class does, since one bridge is around both.
"""

from collections.abc import Iterator

import libcst as cst

from migration_guide.codemod.inference.arguments import fields_filled
from migration_guide.codemod.inference.expressions import Expressions
from migration_guide.codemod.inference.facts import Callable_, parameters
from migration_guide.codemod.inference.kinds import (
    CLASS,
    DEFINITION,
    LEGACY,
    NOTHING,
    Function,
    within,
)
from migration_guide.codemod.reading.names import OPTIM, shared_name
from migration_guide.codemod.reading.tree import keyword_of, last_name, names_bound

_CONTAINERS = (
    "dict", "enumerate", "filter", "items", "list", "map", "max", "min", "reversed", "sorted",
    "tuple", "values", "zip",
)  # fmt: skip
_OF_DEFINITIONS = ("create", "hyper_params", "init_state", "update_hyper_params")
EVERY = -1  # in place of an argument's position
ADD = ("add", "append", "extend", "insert", "setdefault", "update")


def keep(a: Expressions) -> None:
    """Marks the calls that must make legacy definitions."""
    waiting = [*_legacy_arguments(a), *_results_of_alternatives(a)]
    seen: set[cst.CSTNode] = set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += _sources(a, node)


def _results_of_alternatives(a: Expressions) -> Iterator[cst.CSTNode]:
    """Yields results of functions that are called where a class is called at other times."""
    callees: list[cst.CSTNode] = [c.func for c in a.facts.calls if _is_chosen(a, c)]
    seen: set[cst.CSTNode] = set()
    while callees:
        node = callees.pop()
        if node in seen or (isinstance(node, cst.Call) and DEFINITION in a.kind(node)):
            continue
        seen.add(node)
        for atom in a.kind(node):
            if isinstance(atom, Function):
                yield from a.facts.returns.get(atom.node, ())
        imported = a.names.of(node) if isinstance(node, cst.Name | cst.Attribute) else None
        if imported is not None:
            module_function = shared_name(imported)
            a.shared.legacy_results |= {module_function} & a.project.returns.keys()
        elif isinstance(node, cst.Attribute):
            callees += _field_sources(a, node.attr.value)
        else:
            callees += _sources(a, node)


def _is_chosen(a: Expressions, call: cst.Call) -> bool:
    """True if a call is of a class that is chosen at run time."""
    return CLASS in a.kind(call.func) and a.names.entry(call.func) is None


def _legacy_arguments(a: Expressions) -> Iterator[cst.CSTNode]:
    """Yields the arguments of calls that stay legacy, also those that other files demand."""
    for call in a.facts.calls:
        chosen = _is_chosen(a, call)
        takes_legacy = a.names.entry(call.func) is not None and any(
            LEGACY in within(a.kind(arg.value)) for arg in call.args
        )
        if chosen or takes_legacy or a.makes_own_definition(call):
            if takes_legacy:
                a.mark(a.legacy, call)
            yield from (arg.value for arg in call.args)
        demanded = a.project.legacy_arguments.get(a.imported_function(call) or "", ())
        for index, arg in enumerate(call.args if demanded else ()):
            key = keyword_of(arg) or index
            if arg.star or key in demanded or EVERY in demanded:
                yield arg.value
    for node in a.facts.attributes:  # called, or handed on: `jax.jit(definition.create)`
        kind = a.kind(node.value) if node.attr.value in _OF_DEFINITIONS else NOTHING
        if {DEFINITION, LEGACY} <= kind:
            yield node.value  # one bridge is around all that it may be
    for function in a.facts.functions:
        if a.function_name(function) in a.project.legacy_results:
            yield from a.facts.returns[function]
    for name in a.variables().keys() & a.project.legacy_results:
        yield from _variable_sources(a, cst.Name(name.rpartition(".")[2]))
    for name in a.project.legacy_fields:
        yield from _field_sources(a, name)


def _sources(a: Expressions, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yields the sources of an expression's value; marks calls of flax.optim's own classes."""
    match node:
        case cst.Call():
            yield from _call_sources(a, node)
        case cst.Name():
            yield from _variable_sources(a, node)
        case cst.Attribute():
            _note_shared(a, node)
            if a.project.fields.get(node.attr.value) or a.names.of(node) is None:
                a.shared.legacy_fields |= {node.attr.value}
                yield from _field_sources(a, node.attr.value)
        case cst.Subscript() | cst.StarredElement() | cst.NamedExpr():
            yield node.value
        case cst.ListComp() | cst.GeneratorExp() | cst.SetComp():
            yield node.elt
        case cst.DictComp():
            yield node.value
        case cst.List() | cst.Tuple() | cst.Set() | cst.Dict():
            yield from (element.value for element in node.elements)
        case cst.IfExp():
            yield from (node.body, node.orelse)
        case cst.BooleanOperation() | cst.BinaryOperation():
            yield from (node.left, node.right)
        case _:
            return


def _call_sources(a: Expressions, call: cst.Call) -> Iterator[cst.CSTNode]:
    is_traversal = a.names.of(call.func) == f"{OPTIM}.ModelParamTraversal"
    if is_traversal or a.names.entry(call.func) is not None or a.makes_own_definition(call):
        a.mark(a.legacy, call)
        yield from (arg.value for arg in call.args)
        return
    kind = a.kind(call.func)
    if CLASS in kind:
        a.mark(a.legacy, call)
    for atom in kind:
        if isinstance(atom, Function):
            yield from a.facts.returns.get(atom.node, ())
    name = a.imported_function(call)
    if name is not None:
        a.shared.legacy_results |= {name}
    if last_name(call.func) in _CONTAINERS:
        yield from (arg.value for arg in call.args)
    method = call.func if isinstance(call.func, cst.Attribute) else None
    if method is not None and method.attr.value in (*_CONTAINERS, "get", "pop", "copy"):
        yield method.value


def _note_shared(a: Expressions, node: cst.CSTNode) -> None:
    """Notes a variable of another file whose value stays legacy."""
    a.shared.legacy_results |= {shared_name(a.names.of(node) or "")} & a.project.values.keys()


def _variable_sources(a: Expressions, variable: cst.Name) -> Iterator[cst.CSTNode]:
    """Yields the values assigned to a variable, put into it, or passed for it if a parameter."""
    _note_shared(a, variable)
    for target, value in (*a.facts.assignments, *a.facts.loops):
        while isinstance(target, cst.Subscript):
            target = target.value
        if any(_is_same(a, name, variable) for name in names_bound(target)):
            yield value
    for call in a.facts.calls:
        holder = call.func.value if isinstance(call.func, cst.Attribute) else None
        if last_name(call.func) in ADD and holder is not None and _is_same(a, holder, variable):
            yield from (arg.value for arg in call.args)
    for assignment in a.names.assignments(variable):
        if isinstance(assignment.node, cst.Param):
            yield from _argument_sources(a, assignment.node)


def _is_same(a: Expressions, node: cst.CSTNode, variable: cst.Name) -> bool:
    if not isinstance(node, cst.Name) or node.value != variable.value:
        return False
    return a.names.assignments(node) == a.names.assignments(variable)


def _argument_sources(a: Expressions, parameter: cst.Param) -> Iterator[cst.CSTNode]:
    """Yields arguments for a parameter in this file, and notes it for other files."""
    function = next((f for f in a.facts.functions if parameter in _parameters(f)), None)
    if function is None:
        return
    if parameter.default is not None:
        yield parameter.default
    names = [p.name.value for p in parameters(function)]
    place = names.index(parameter.name.value) if parameter.name.value in names else None
    keys = frozenset({EVERY if place is None else place, parameter.name.value})
    demanded = a.shared.legacy_arguments
    demanded[a.function_name(function)] = demanded.get(a.function_name(function), keys) | keys
    for call in a.facts.calls:
        for atom in a.kind(call.func):
            if isinstance(atom, Function) and atom.node is function:
                index = None if place is None else place - atom.bound
                yield from _arguments(call, index, parameter.name.value)


def _parameters(function: Callable_) -> list[cst.Param]:
    star = function.params.star_arg
    return [*parameters(function), *([star] if isinstance(star, cst.Param) else [])]


def _arguments(call: cst.Call, index: int | None, name: str) -> Iterator[cst.BaseExpression]:
    """The arguments that may be those of a parameter; all by position for `*name`."""
    for position, arg in enumerate(call.args):
        if (
            arg.star
            or keyword_of(arg) == name
            or (arg.keyword is None and index in (None, position))
        ):
            yield arg.value


def _field_sources(a: Expressions, name: str) -> Iterator[cst.BaseExpression]:
    """Yields the values that are put into fields of a name."""
    for target, value in a.facts.assignments:
        while isinstance(target, cst.Subscript):
            target = target.value
        if isinstance(target, cst.Attribute) and target.attr.value == name:
            yield value
    yield from (value for field, value in a.facts.class_attributes if field == name)
    for call in a.facts.calls:
        method = call.func if isinstance(call.func, cst.Attribute) else None
        if method is not None and last_name(method.value) == name and method.attr.value in ADD:
            yield from (arg.value for arg in call.args)
        yield from (value for field, value in fields_filled(a, call) if field == name)
