# pyright: strict
"""The constructor calls behind what a program restores, as `--optimizer` of a command takes them.

What is written out in the program is followed through variables, functions with one result, dicts,
tuples and the fields of the program's own classes. A traversal by a part of the path is a pattern:
`lambda path, _: "bias" in path` selects `*bias*`.
"""

import ast
from collections.abc import Iterator

import libcst as cst

from migration_guide.codemod import settings
from migration_guide.codemod.analysis import Analysis
from migration_guide.codemod.facts import fields, parameters
from migration_guide.codemod.kinds import OPTIMIZER, within
from migration_guide.codemod.names import OPTIM
from migration_guide.codemod.tree import argument, walk
from optax_bridge.correspondence import Entry

_DEEPEST = 12
_COPIES = ("flax.jax_utils.replicate", "flax.jax_utils.unreplicate")


class Unknown(Exception):
    """What a definition is cannot be seen in the source."""


def restored_optimizers(analysis: Analysis, template: cst.BaseExpression) -> dict[str, str]:
    """Where each optimizer stands in what a program restores into -> its constructor call.

    Args:
      analysis: of the module.
      template: what is restored into: an optimizer, or what has some.

    Returns:
      Paths such as `policy/optimizer`, "" for the whole; {} if some call is not written out.
    """
    try:
        return dict(_optimizers(analysis, template, "", 0))
    except Unknown:
        return {}


def definition_text(analysis: Analysis, node: cst.BaseExpression) -> str:
    """The constructor call that an expression stands for; "" if it is not written out."""
    try:
        return _definition(analysis, node, 0)
    except Unknown:
        return ""


def origin(analysis: Analysis, node: cst.BaseExpression) -> cst.BaseExpression:
    """What a variable is first: the one value that is not computed from itself.

    Raises:
      Unknown: there is none, or there are several.
    """
    seen = 0
    while isinstance(node, cst.Name) and seen < _DEEPEST:
        values = [v for v in analysis.assigned_to(node) if not _mentions(v, node.value)]
        values = values or [_given(analysis, node)]
        if len(values) != 1:
            raise Unknown
        node, seen = values[0], seen + 1
    return node


def _mentions(value: cst.BaseExpression, name: str) -> bool:
    return any(isinstance(node, cst.Name) and node.value == name for node in walk(value))


def _given(analysis: Analysis, node: cst.Name) -> cst.BaseExpression:
    """The one thing that is given for a parameter of a function of the module."""
    for bound in analysis.names.assignments(node):
        parameter = getattr(bound, "node", None)
        function = analysis.parents.get(analysis.parents.get(parameter, node))
        if not isinstance(parameter, cst.Param) or not isinstance(function, cst.FunctionDef):
            continue
        names = [one.name.value for one in parameters(function)]
        index = names.index(node.value)
        calls = [
            call
            for call in analysis.facts.calls
            if isinstance(call.func, cst.Name) and call.func.value == function.name.value
        ]
        values = [argument(call, index, node.value) for call in calls]
        known = [value for value in values if value is not None]
        if len(known) == len(values) == 1:
            return known[0]
    raise Unknown


def _optimizers(
    a: Analysis, node: cst.BaseExpression, path: str, depth: int
) -> Iterator[tuple[str, str]]:
    if depth > _DEEPEST:
        raise Unknown
    first = origin(a, node)
    if not _holds_optimizer(a, node) and not _holds_optimizer(a, first):
        return
    for name, part in _parts(a, first):
        if _holds_optimizer(a, part):
            yield from _optimizers(a, part, f"{path}/{name}".strip("/"), depth + 1)
    if _has_parts(a, first):
        return
    if not isinstance(first, cst.Call):
        raise Unknown
    returned = _returned(a, first)
    if returned is not None:
        yield from _optimizers(a, returned, path, depth + 1)
    else:
        yield path, _optimizer(a, first, depth)


def _holds_optimizer(a: Analysis, node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Call) and _class_of(a, node) is not None:
        return any(_holds_optimizer(a, part) for _, part in _parts(a, node))
    return OPTIMIZER in within(a.kind(node))


def _has_parts(a: Analysis, node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Dict | cst.Tuple | cst.List) or (
        isinstance(node, cst.Call) and _class_of(a, node) is not None
    )


def _parts(a: Analysis, node: cst.BaseExpression) -> Iterator[tuple[str, cst.BaseExpression]]:
    """The parts of a container by the names that they have in a checkpoint."""
    if isinstance(node, cst.Dict):
        for element in node.elements:
            key = element.key if isinstance(element, cst.DictElement) else None
            if not isinstance(key, cst.SimpleString):
                raise Unknown
            yield str(key.evaluated_value), element.value
    elif isinstance(node, cst.Tuple | cst.List):
        for index, element in enumerate(node.elements):
            if isinstance(element, cst.StarredElement):
                raise Unknown
            yield str(index), element.value
    elif isinstance(node, cst.Call):
        owner = _class_of(a, node)
        for index, arg in enumerate(node.args if owner is not None else ()):
            names = fields(owner) if owner is not None else []
            if arg.star or (arg.keyword is None and index >= len(names)):
                raise Unknown
            yield arg.keyword.value if arg.keyword is not None else names[index], arg.value


def _class_of(a: Analysis, call: cst.Call) -> cst.ClassDef | None:
    """The module's own class that a call makes an instance of."""
    bound = a.names.assignments(call.func) if isinstance(call.func, cst.Name) else []
    nodes = [getattr(one, "node", None) for one in bound]
    return nodes[0] if len(nodes) == 1 and isinstance(nodes[0], cst.ClassDef) else None


def _returned(a: Analysis, call: cst.Call) -> cst.BaseExpression | None:
    """The one thing that a function of the module returns."""
    bound = a.names.assignments(call.func) if isinstance(call.func, cst.Name) else []
    nodes = [getattr(one, "node", None) for one in bound]
    if len(nodes) != 1 or not isinstance(nodes[0], cst.FunctionDef):
        return None
    values = a.facts.returns.get(nodes[0], [])
    return values[0] if len(values) == 1 else None


def _optimizer(a: Analysis, call: cst.Call, depth: int) -> str:
    """The constructor call behind `definition.create(params)`."""
    if a.names.of(call.func) in _COPIES and call.args:
        return _one(a, call.args[0].value, depth)
    if not isinstance(call.func, cst.Attribute):
        raise Unknown
    if call.func.attr.value == "replicate":
        return _one(a, call.func.value, depth)
    if call.func.attr.value != "create":
        raise Unknown
    text = _definition(a, call.func.value, depth)
    focus = argument(call, 1, "focus")
    return text if focus is None else f"MultiOptimizer(({_pattern(a, focus)!r}, {text}))"


def _one(a: Analysis, node: cst.BaseExpression, depth: int) -> str:
    ((_, text),) = _optimizers(a, node, "", depth + 1)
    return text


def _definition(a: Analysis, node: cst.BaseExpression, depth: int) -> str:
    call = origin(a, node)
    if not isinstance(call, cst.Call) or depth > _DEEPEST:
        raise Unknown
    entry = a.names.entry(call.func)
    if entry is None:
        returned = _returned(a, call)
        if returned is None:
            raise Unknown
        return _definition(a, returned, depth + 1)
    if any(hp.variadic for hp in entry.hyper_params):
        groups = ", ".join(_group(a, arg, depth) for arg in call.args)
        return f"{entry.legacy.__name__}({groups})"
    arguments = settings.given(entry, call.args, call.args)
    if arguments is None:
        raise Unknown
    texts = [f"{name}={_setting(a, entry, name, arg, depth)}" for name, arg in arguments.items()]
    return f"{entry.legacy.__name__}({', '.join(texts)})"


def _setting(a: Analysis, entry: Entry, name: str, arg: cst.Arg, depth: int) -> str:
    """The source of a setting; only the rate may be computed when the program runs."""
    if entry.parts is not None and entry.hyper_params[0].legacy == name:
        return _definition(a, arg.value, depth + 1)
    text = a.module.code_for_node(arg.value).strip()
    try:
        return repr(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        if name != "learning_rate":
            raise Unknown from None
    return " ".join(text.split())


def _group(a: Analysis, arg: cst.Arg, depth: int) -> str:
    pair = arg.value
    if arg.star or not isinstance(pair, cst.Tuple) or len(pair.elements) != 2:
        raise Unknown
    selector, definition = (element.value for element in pair.elements)
    return f"({_pattern(a, selector)!r}, {_definition(a, definition, depth + 1)})"


def _pattern(a: Analysis, selector: cst.BaseExpression) -> str:
    """The pattern that selects what a traversal does: `*kernel*`."""
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
    """A text that stands for itself in a pattern."""
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    if not isinstance(value, str) or set(value) & set("*?["):
        raise Unknown
    return value
