# pyright: strict
"""The constructor calls behind a restored template, as `--optimizer` of a command takes them.

They are followed through variables, functions with one result, dicts, tuples and the fields of the
program's own classes. A traversal by a part of the path is a pattern:
`lambda path, _: "bias" in path` selects `*bias*`.
"""

import ast
from collections.abc import Iterator

import libcst as cst

from migration_guide.codemod.inference.analysis import Analysis
from migration_guide.codemod.inference.facts import fields, parameters
from migration_guide.codemod.inference.kinds import NOTHING, OPTIMIZER, Instance, within
from migration_guide.codemod.reading.names import OPTIM
from migration_guide.codemod.reading.tree import argument, keyword_of, text_of, walk
from migration_guide.codemod.results import UNKNOWN_RATE
from migration_guide.codemod.writing import settings
from optax_bridge.correspondence import Entry

_DEEPEST = 12
_CONSTANTS = ("True", "False", "None")
_COPIES = ("flax.jax_utils.replicate", "flax.jax_utils.unreplicate")


class Unknown(Exception):
    """The source does not show which definition it is."""


def restored_optimizers(analysis: Analysis, template: cst.BaseExpression) -> dict[str, str]:
    """Maps the path of each optimizer in a restored template to its constructor call."""
    try:
        return dict(_optimizers(analysis, template, "", 0))
    except Unknown:
        return {}


def only_definition(analysis: Analysis) -> dict[str, str]:
    """The one constructor call of a module, as `restored_optimizers` has it; {} if it has more."""
    calls = [call for call, _ in analysis.constructions]
    inner = {node for call in calls for arg in call.args for node in walk(arg.value)}
    outer = [call for call in calls if call not in inner]
    text = definition_text(analysis, outer[0]) if len(outer) == 1 else ""
    return {"": text} if text else {}


def definition_text(analysis: Analysis, node: cst.BaseExpression) -> str:
    """Returns the constructor call of an expression's value; "" if it is not written out."""
    try:
        return _definition(analysis, node, 0)
    except Unknown:
        return ""


def origin(analysis: Analysis, node: cst.BaseExpression) -> cst.BaseExpression:
    """Returns a variable's first value: the one that is not computed from itself."""
    seen = 0
    while isinstance(node, cst.Name) and node.value not in _CONSTANTS and seen < _DEEPEST:
        values = [v for v in analysis.assigned_to(node) if not _mentions(v, node.value)]
        values = values or [_argument_for(analysis, node)]
        if len(values) != 1:
            raise Unknown
        node, seen = values[0], seen + 1
    return node


def _mentions(value: cst.BaseExpression, name: str) -> bool:
    return any(isinstance(node, cst.Name) and node.value == name for node in walk(value))


def _argument_for(analysis: Analysis, node: cst.Name) -> cst.BaseExpression:
    """Returns the only argument for a parameter of a function of the module, or its default."""
    for bound in analysis.names.assignments(node):
        parameter = getattr(bound, "node", None)
        if not isinstance(parameter, cst.Param):
            continue
        function = analysis.parents.get(analysis.parents[parameter])
        if not isinstance(function, cst.FunctionDef):
            continue
        names = [p.name.value for p in parameters(function)]
        index = names.index(node.value)
        calls = [
            call
            for call in analysis.facts.calls
            if isinstance(call.func, cst.Name) and call.func.value == function.name.value
        ]
        values = [argument(call, index, node.value) for call in calls]
        values = [parameter.default if value is None else value for value in values]
        if len(values) == 1 and values[0] is not None:
            return values[0]
    raise Unknown


def _optimizers(
    a: Analysis, node: cst.BaseExpression, path: str, depth: int
) -> Iterator[tuple[str, str]]:
    try:
        first = origin(a, node)
    except Unknown:
        if _may_hold_some(a, node):
            raise
        return
    returned = _returned_value(a, first)
    if depth > _DEEPEST:
        raise Unknown
    if returned is not None:
        yield from _optimizers(a, returned, path, depth + 1)
    elif isinstance(first, cst.Dict | cst.Tuple | cst.List) or _class_of(a, first) is not None:
        for name, element in _parts(a, first):
            yield from _optimizers(a, element, f"{path}/{name}".strip("/"), depth + 1)
    elif OPTIMIZER in a.kind(first):
        yield path, _optimizer(a, first, depth)
    elif _may_hold_some(a, first):
        raise Unknown


def _may_hold_some(a: Analysis, node: cst.BaseExpression) -> bool:
    """True if an expression may be an optimizer, or have some in it or in its fields."""
    atoms = set(within(a.kind(node)))
    owners = [atom.node for atom in atoms if isinstance(atom, Instance)]
    names = [name for owner in owners for name in fields(owner)]
    return OPTIMIZER in atoms or any(OPTIMIZER in within(a.fields.get(n, NOTHING)) for n in names)


def _parts(a: Analysis, node: cst.BaseExpression) -> Iterator[tuple[str, cst.BaseExpression]]:
    """The parts of a container by the names that they have in a checkpoint."""
    if isinstance(node, cst.Dict):
        for element in node.elements:
            key = element.key if isinstance(element, cst.DictElement) else None
            if not isinstance(key, cst.SimpleString):
                raise Unknown
            yield text_of(key), element.value
    elif isinstance(node, cst.Tuple | cst.List):
        for index, element in enumerate(node.elements):
            if isinstance(element, cst.StarredElement):
                raise Unknown
            yield str(index), element.value
    elif isinstance(node, cst.Call):
        owner = _class_of(a, node)
        names = fields(owner) if owner is not None else []
        for index, arg in enumerate(node.args):
            if arg.star or (arg.keyword is None and index >= len(names)):
                raise Unknown
            yield keyword_of(arg) or names[index], arg.value


def _callee(a: Analysis, node: cst.BaseExpression) -> cst.CSTNode | None:
    """Returns the class or function of the module that an expression calls by name, if only one."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Name):
        return None
    nodes = [getattr(bound, "node", None) for bound in a.names.assignments(node.func)]
    return nodes[0] if len(nodes) == 1 else None


def _class_of(a: Analysis, node: cst.BaseExpression) -> cst.ClassDef | None:
    """The module's own class that an expression makes an instance of."""
    called = _callee(a, node)
    return called if isinstance(called, cst.ClassDef) else None


def _returned_value(a: Analysis, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Returns the value that a function of the module returns, if there is only one."""
    called = _callee(a, node)
    values = a.facts.returns.get(called, []) if isinstance(called, cst.FunctionDef) else []
    return values[0] if len(values) == 1 else None


def _optimizer(a: Analysis, call: cst.BaseExpression, depth: int) -> str:
    """The constructor call behind `definition.create(params)`."""
    if not isinstance(call, cst.Call):
        raise Unknown
    if a.names.of(call.func) in _COPIES and call.args:
        return _one_definition(a, call.args[0].value, depth)
    if not isinstance(call.func, cst.Attribute):
        raise Unknown
    if call.func.attr.value == "replicate":
        return _one_definition(a, call.func.value, depth)
    if call.func.attr.value != "create":
        raise Unknown
    text = _definition(a, call.func.value, depth)
    focus = argument(call, 1, "focus")
    return text if focus is None else f"MultiOptimizer(({_pattern(a, focus)!r}, {text}))"


def _one_definition(a: Analysis, node: cst.BaseExpression, depth: int) -> str:
    ((_, text),) = _optimizers(a, node, "", depth + 1)
    return text


def _definition(a: Analysis, node: cst.BaseExpression, depth: int) -> str:
    call = origin(a, node)
    if not isinstance(call, cst.Call) or depth > _DEEPEST:
        raise Unknown
    entry = a.names.entry(call.func)
    if entry is None:
        returned = _returned_value(a, call)
        if returned is None:
            raise Unknown
        return _definition(a, returned, depth + 1)
    if entry.takes_groups:
        groups = ", ".join(_group(a, arg, depth) for arg in call.args)
        return f"{entry.legacy.__name__}({groups})"
    arguments = settings.legacy_arguments(entry, call.args)
    if arguments is None:
        raise Unknown
    texts = [f"{name}={_setting(a, entry, name, arg, depth)}" for name, arg in arguments.items()]
    return f"{entry.legacy.__name__}({', '.join(texts)})"


def _setting(a: Analysis, entry: Entry, name: str, arg: cst.Arg, depth: int) -> str:
    """The source of a setting; a rate that the program computes is some number here."""
    if entry.parts is not None and entry.hyper_params[0].legacy == name:
        return _definition(a, arg.value, depth + 1)
    text = literal(a, arg.value)
    if name == "learning_rate" and text in ("", "None"):
        return UNKNOWN_RATE
    if not text:
        raise Unknown
    return text


def literal(a: Analysis, node: cst.BaseExpression) -> str:
    """Returns the literal that an expression is, followed through variables; "" if it is none."""
    try:
        return repr(ast.literal_eval(a.module.code_for_node(origin(a, node)).strip()))
    except (ValueError, SyntaxError, Unknown):
        return ""


def _group(a: Analysis, arg: cst.Arg, depth: int) -> str:
    pair = arg.value
    if arg.star or not isinstance(pair, cst.Tuple) or len(pair.elements) != 2:
        raise Unknown
    selector, definition = (element.value for element in pair.elements)
    return f"({_pattern(a, selector)!r}, {_definition(a, definition, depth + 1)})"


def _pattern(a: Analysis, selector: cst.BaseExpression) -> str:
    """Returns a traversal as a pattern: `*kernel*`."""
    call = origin(a, selector)
    if not isinstance(call, cst.Call) or a.names.of(call.func) != f"{OPTIM}.ModelParamTraversal":
        raise Unknown
    function = call.args[0].value if len(call.args) == 1 else None
    if not isinstance(function, cst.Lambda) or not function.params.params:
        raise Unknown
    path, test = function.params.params[0].name.value, function.body
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        target = test.comparisons[0]
        if isinstance(target.operator, cst.In) and _is_name(target.comparator, path):
            return f"*{_plain(test.left)}*"
        if isinstance(target.operator, cst.Equal) and _is_name(test.left, path):
            return _plain(target.comparator)
    if isinstance(test, cst.Call) and isinstance(test.func, cst.Attribute) and len(test.args) == 1:
        ends = {"endswith": "*{}", "startswith": "{}*"}.get(test.func.attr.value)
        if ends is not None and _is_name(test.func.value, path):
            return ends.format(_plain(test.args[0].value))
    raise Unknown


def _is_name(node: cst.BaseExpression, name: str) -> bool:
    return isinstance(node, cst.Name) and node.value == name


def _plain(node: cst.BaseExpression) -> str:
    """Returns the text of a literal that has no wildcards."""
    if not isinstance(node, cst.SimpleString) or set(text_of(node)) & set("*?["):
        raise Unknown
    return text_of(node)
