"""Reading a constructor call of another library from text: parsed as Python, never evaluated."""

import ast
import inspect

from optax_bridge._literals import expression as parsed
from optax_bridge._literals import literal
from optax_bridge._text import did_you_mean
from optax_bridge.correspondence import ENTRIES, ORIGINS, TORCH, Described, Table, entries_by_class
from optax_bridge.correspondence.entry import Entry
from optax_bridge.correspondence.recipe import Name, Node, Source
from optax_bridge.correspondence.values import expectation, meant

_DTYPES = ("bfloat16", "float16", "float32", "float64")
MAX_DEPTH = 50  # of calls, signs and brackets in one another; Python's own parser gives up as well
MAX_LENGTH = 10_000


class ExpressionError(ValueError):
    """An expression that is not a legacy constructor call; names the place and an example."""


def parse(expression: str, table: Table | None = None) -> Described:
    """Reads `"Adam(learning_rate=1e-3)"`, in any case, with or without `flax.optim.`."""
    tree = _tree(expression)
    named = tree.func if isinstance(tree, ast.Call) else tree
    home = _home(named, expression)
    is_of_model = isinstance(tree, ast.Call) and any(map(_is_of_model, tree.args))
    origins = (TORCH,) if is_of_model and TORCH.is_home(home or "optim") else ORIGINS
    tables = [table] if table else [t for t in origins if t.is_home(home)] or [origins[0]]
    name = _class_name(named)
    so_spelt = (t for t in tables if name in entries_by_class(t) or name in t.without_entry)
    return _optimizer(tree, expression, next(so_spelt, tables[0]))


def _is_of_model(argument: ast.expr) -> bool:
    """True of `model.parameters()`, which PyTorch's constructors are given, and no other's."""
    functions = [node.func for node in ast.walk(argument) if isinstance(node, ast.Call)]
    names = [node.attr for node in functions if isinstance(node, ast.Attribute)]
    return not {"parameters", "named_parameters"}.isdisjoint(names)


def _tree(expression: str) -> ast.expr:
    """The parsed expression."""
    if len(expression) > MAX_LENGTH:
        raise ExpressionError(
            f"{_cut(expression)} has {len(expression)} characters; expected one constructor call "
            f"of at most {MAX_LENGTH}"
        )
    try:
        tree = parsed(expression)
    except ValueError as error:
        raise ExpressionError(f"{_cut(expression)} is not a Python expression: {error}") from None
    _check_depth(tree, expression)
    return tree


def _check_depth(tree: ast.AST, text: str) -> None:
    """Checks the depth without recursion; later functions recurse."""
    nodes = [(tree, 0)]
    while nodes:
        node, depth = nodes.pop()
        if depth > MAX_DEPTH:
            raise ExpressionError(
                f"{_cut(text)} is nested too deep; expected at most {MAX_DEPTH} levels of calls, "
                "signs and brackets"
            )
        nodes += [(child, depth + 1) for child in ast.iter_child_nodes(node)]


def _cut(text: str) -> str:
    return repr(text) if len(text) <= 100 else f"{text[:100]!r}..."


def _optimizer(node: ast.expr, text: str, table: Table) -> Described:
    """The optimizer of a call, whose name may be in any case."""
    named = node.func if isinstance(node, ast.Call) else node
    entry = _entry(named, text, table)
    classes = entries_by_class(table)
    if entry is None:
        name = _class_name(named) or ""
        others = [t for t in ORIGINS if name in entries_by_class(t)]
        # A name alone may be of any origin.
        tables = (table,) if others or _home(named, text) else (table, *ORIGINS)
        if owner := next((t for t in tables if name in t.without_entry), None):
            raise ExpressionError(f"{owner.origin}.{name}: {owner.without_entry[name]}")
        is_meant = did_you_mean(name, classes) or "."
        if others:
            is_meant = f"; is {others[0].origin}.{name} meant?"
        kind = "a legacy optimizer" if table is ENTRIES else table.origin
        raise ExpressionError(
            f"{_text(node, text)!r} is not a call of {kind}{is_meant} Expected one of "
            f'{", ".join(sorted(classes))}, e.g. "{table.example}"'
        )
    if not isinstance(node, ast.Call):
        raise ExpressionError(
            f"{_text(node, text)!r} is a name, not a call: write {entry.legacy.__name__}(), or "
            f"{entry.legacy.__name__}(...) with the arguments that the program gives"
        )
    settings, extra_arguments = _arguments(node, entry, text, table)
    settings = entry.defaults() | settings
    if table is TORCH and not any(isinstance(value, Source) for value in settings.values()):
        try:
            entry.legacy(**settings)
        except ValueError as error:
            raise ExpressionError(f"{_text(node, text)!r}: {error}") from None
    return Described(entry, settings, extra_arguments)


def _entry(node: ast.expr, text: str, table: Table) -> Entry | None:
    """The entry of `Adam`, `adam`, `optim.Adam`, `flax.optim.adam.Adam`; None for others."""
    lower = {name.lower(): entry for name, entry in entries_by_class(table).items()}
    entry = lower.get((_class_name(node) or "").lower())
    if entry is None or not isinstance(node, ast.Attribute) or table.is_home(_home(node, text)):
        return entry
    name = entry.legacy.__name__
    raise ExpressionError(
        f"{_text(node, text)} is not the {name} of {table.origin}, but that of "
        f"{_home(node, text)}; expected {name}(...), optim.{name}(...) or "
        f"{table.origin}.{name}(...)"
    )


def _home(node: ast.expr, text: str) -> str:
    """A dotted name without its last part."""
    return _text(node.value, text) if isinstance(node, ast.Attribute) else ""


def _arguments(
    node: ast.Call, entry: Entry, text: str, table: Table
) -> tuple[dict[str, Node], dict[str, str]]:
    """Returns the settings of a call, and its other arguments."""
    name = entry.legacy.__name__
    hyper_params = {hp.legacy: hp for hp in entry.hyper_params}
    names = list(hyper_params)
    if entry.takes_groups:
        return {names[0]: _groups(node, entry, text, table)}, {}
    places = [hp.legacy for hp in entry.hyper_params if not hp.by_name]
    args, extra_arguments = node.args, dict[str, str]()
    if "params" in entry.extra_arguments and args:
        extra_arguments["params"] = _parameters(args[0], text, name)
        args = args[1:]
    if len(args) > len(places) or any(isinstance(arg, ast.Starred) for arg in args):
        raise ExpressionError(
            f"{_text(node, text)!r}: {name} takes {len(places)} arguments, {', '.join(places)}, "
            "each written out"
        )
    arguments = list(zip(places, args, strict=False))
    for keyword in node.keywords:
        if keyword.arg in entry.extra_arguments and keyword.arg not in extra_arguments:
            extra_arguments[str(keyword.arg)] = _text(keyword.value, text)
            continue
        if keyword.arg not in names:
            ports = {hp.legacy: hp.port for hp in entry.hyper_params}
            legacy = meant(keyword.arg or "", ports)
            is_meant = f"; is {legacy} meant?" if legacy else "."
            raise ExpressionError(
                f"{_text(node, text)!r}: {name} has no argument {keyword.arg or '**'}{is_meant} It "
                f"takes {', '.join(names)}"
            )
        if keyword.arg in dict(arguments):
            raise ExpressionError(f"{_text(node, text)!r}: {keyword.arg} is given twice")
        arguments.append((keyword.arg, keyword.value))
    values = {}
    for key, value in arguments:
        values[key] = _value(value, text, table, key)
        wanted = expectation(hyper_params[key].default, hyper_params[key].within, values[key])
        if wanted and not isinstance(values[key], Source):
            raise ExpressionError(
                f"{_text(node, text)!r}: {key} is {wanted}, or an expression of the program; found "
                f"{_text(value, text)}"
            )
    required = [hp.legacy for hp in entry.hyper_params if hp.default is inspect.Parameter.empty]
    missing = [name for name in required if name not in values]
    if missing:
        raise ExpressionError(f"{_text(node, text)!r}: {missing[0]} is missing")
    if entry.parts is not None and not isinstance(values[required[0]], Described | Source):
        raise ExpressionError(
            f"{_text(node, text)!r}: {required[0]} is an optimizer, e.g. {entry.parts.example}"
        )
    return values, extra_arguments


def _parameters(node: ast.expr, text: str, name: str) -> str:
    """The parameters that PyTorch's constructors take first, as source."""
    source = _text(node, text)
    if isinstance(node, ast.Constant | ast.UnaryOp | ast.BinOp):
        raise ExpressionError(
            f"{source!r} is where PyTorch's {name} takes the parameters: write "
            f"{name}(lr={source}), or {name}(params, {source})"
        )
    if isinstance(node, ast.List) and any(isinstance(item, ast.Dict) for item in node.elts):
        raise ExpressionError(
            f"{_cut(source)}: groups of parameters have settings of their own. Write one call for "
            "each group, and combine the recipes by optax_bridge.multi_optimizer or "
            "optax.partition"
        )
    return source


def _groups(node: ast.Call, entry: Entry, text: str, table: Table) -> tuple[Node, ...]:
    """The pairs that a MultiOptimizer is given."""
    groups = tuple(_value(arg, text, table) for arg in node.args)
    pairs = all(
        isinstance(group, Source)
        or (
            isinstance(group, tuple)
            and len(group) == 2
            and isinstance(group[0], str | Source)
            and isinstance(group[1], Described | Source)
        )
        for group in groups
    )
    if not groups or not pairs or node.keywords:
        example = entry.parts.example if entry.parts is not None else ""
        raise ExpressionError(
            f"{_text(node, text)!r}: {entry.legacy.__name__} takes pairs of a traversal, or a "
            f"pattern of paths, and an optimizer, e.g. {example}"
        )
    return groups


def _value(node: ast.expr, text: str, table: Table, name: str = "") -> Node:
    try:
        value = literal(node)
    except (ValueError, TypeError):
        pass
    else:
        return _setting(value, node, text, name)
    if isinstance(node, ast.Tuple):
        return tuple(_value(item, text, table) for item in node.elts)
    if isinstance(node, ast.Call) and _entry(node.func, text, table) is not None:
        return _optimizer(node, text, table)
    dtype = _class_name(node)
    if dtype in _DTYPES:
        return Name(f"jax.numpy.{dtype}")
    return Source(_text(node, text))


def _setting(value: object, node: ast.expr, text: str, name: str) -> Node:
    for item in value if isinstance(value, tuple) else ():
        _setting(item, node, text, name)
    if isinstance(value, bool | int | float | str | tuple | None):
        return value
    argument = f"{name}: " if name else ""
    raise ExpressionError(
        f"{argument}{_text(node, text)!r} is not a setting; expected a number, text, "
        "None, a dtype such as jnp.bfloat16, or a tuple of them"
    )


def _class_name(node: ast.expr) -> str | None:
    """The last part of a dotted name, None for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr if _class_name(node.value) is not None else None
    return node.id if isinstance(node, ast.Name) else None


def _text(node: ast.AST, text: str) -> str:
    return ast.get_source_segment(text.strip(), node) or text
