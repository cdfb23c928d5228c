"""Walking and changing LibCST's trees, without the white space that makes up most of their nodes.

LibCST's own visitors go through every blank and every bracket and rebuild the whole tree, which is
most of the time that a rewriter takes. These functions look for expressions and statements alone.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import libcst as cst

# Fields that hold layout, signs or operators alone.
_LAYOUT = frozenset(
    [
        "asynchronous", "colon", "comma", "comment", "dot", "empty_lines", "equal", "first_colon",
        "first_line", "footer", "header", "indent", "last_line", "lbrace", "lbracket",
        "leading_lines", "lines_after_decorators", "lpar", "newline", "operator", "posonly_ind",
        "rbrace", "rbracket", "relative", "rpar", "second_colon", "semicolon", "separator",
        "trailing_comma",
    ]
)  # fmt: skip


@functools.cache
def _inner(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """The fields of a class of nodes that hold expressions or statements."""
    names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return tuple(n for n in names if n not in _LAYOUT and "whitespace" not in n)


@functools.cache
def _is_node(kind: type) -> bool:
    """True if a class is one of nodes; `isinstance` is slow with LibCST's abstract classes."""
    return issubclass(kind, cst.CSTNode)


@functools.cache
def is_statement(kind: type) -> bool:
    """True if a class of nodes is one of statements."""
    return issubclass(kind, cst.BaseStatement)


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The expressions and statements directly below a node, in the order of its fields."""
    return _below(node, _inner(type(node)))


def _below(node: cst.CSTNode, names: Iterable[str]) -> Iterator[cst.CSTNode]:
    for name in names:
        value = getattr(node, name)
        kind = type(value)
        if kind is tuple or kind is list:
            for item in value:
                if _is_node(type(item)):
                    yield item
        elif _is_node(kind):
            yield value


@functools.cache
def _all(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))  # type: ignore[arg-type]


def comments(node: cst.CSTNode) -> list[str]:
    """The comments within a node, in the order of the fields."""
    texts: list[str] = []
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if type(current) is cst.Comment:
            texts.append(current.value)
        elif type(current) is not cst.SimpleWhitespace:
            waiting += reversed(list(_below(current, _all(type(current)))))
    return texts


def walk(node: cst.CSTNode) -> Iterator[Any]:
    """Yields a node and all below it, parents first."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += reversed(list(children(current)))


def parents(root: cst.CSTNode) -> dict[cst.CSTNode, cst.CSTNode]:
    """Node -> the node around it, of all below the root."""
    return {child: node for node in walk(root) for child in children(node)}


def transform(
    node: cst.CSTNode,
    leave: Callable[[Any, Any], Any],
    into: Callable[[cst.CSTNode], bool] = lambda n: True,
) -> Any:
    """Applies a function to each node of a tree, from the inside out."""
    changes: dict[str, Any] = {}
    for name in _inner(type(node)) if into(node) else ():
        value = getattr(node, name)
        if _is_node(type(value)):
            new = transform(value, leave, into)
            if new is not value:
                changes[name] = new
        elif isinstance(value, list | tuple) and value:
            items: list[Any] = []
            for item in value:
                new = transform(item, leave, into) if _is_node(type(item)) else item
                items += new if isinstance(new, cst.FlattenSentinel) else [new]
            if len(items) != len(value) or any(a is not b for a, b in zip(items, value)):  # noqa: B905
                changes[name] = items
    return leave(node, node.with_changes(**changes) if changes else node)


def place_of(call: cst.Call, index: int | None, keyword: str = "") -> int | None:
    """The place among all of an argument by position or keyword; None behind a starred one."""
    names = [keyword_of(arg) for arg in call.args]
    if keyword and keyword in names:
        return names.index(keyword)
    stars = [place for place, arg in enumerate(call.args) if arg.star]
    positional = [place for place, name in enumerate(names[: min(stars, default=None)]) if not name]
    return positional[index] if index is not None and index < len(positional) else None


def argument(call: cst.Call, index: int | None, keyword: str = "") -> cst.BaseExpression | None:
    """An argument by its position or its keyword; None behind a starred one."""
    place = place_of(call, index, keyword)
    return None if place is None else call.args[place].value


def with_argument(call: cst.Call, place: int, value: cst.BaseExpression) -> cst.Call:
    """The call with another value for one of its arguments."""
    args = list(call.args)
    args[place] = args[place].with_changes(value=value)
    return call.with_changes(args=args)


def dotted_name(node: cst.CSTNode | None) -> str | None:
    """`a.b.c` of a chain of plain names; None for anything else."""
    if isinstance(node, cst.Attribute):
        holder = dotted_name(node.value)
        return None if holder is None else f"{holder}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else None


def root_name(node: cst.CSTNode | None) -> cst.Name | None:
    """The `a` of `a.b.c`; None if that begins with no name."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return node if isinstance(node, cst.Name) else None


def names_bound(target: cst.CSTNode) -> Iterator[cst.Name]:
    """The variables that a target of an assignment or a loop binds."""
    if isinstance(target, cst.Name):
        yield target
    elif isinstance(target, cst.Tuple | cst.List):
        for element in target.elements:
            yield from names_bound(element.value)


def last_name(node: cst.CSTNode) -> str:
    """`c` of `a.b.c`, also where `a` is no name."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def text_of(node: cst.CSTNode | None) -> str:
    """Returns the text of a string literal; "" for anything else."""
    return str(node.evaluated_value) if isinstance(node, cst.SimpleString) else ""


def index_of(node: cst.CSTNode | None) -> cst.BaseExpression | None:
    """Returns the `i` of `x[i]`; None for slices, several indices and other nodes."""
    only = node.slice[0].slice if isinstance(node, cst.Subscript) and len(node.slice) == 1 else None
    return only.value if isinstance(only, cst.Index) else None


def keyword_of(arg: cst.Arg) -> str:
    """Returns the keyword of an argument; "" if it is given by position."""
    return arg.keyword.value if arg.keyword is not None else ""


def method_call(node: cst.CSTNode | None) -> tuple[cst.BaseExpression | None, str]:
    """Returns the `x` and the name of `x.name(...)`; None and "" for anything else."""
    func = node.func if isinstance(node, cst.Call) else None
    return (func.value, func.attr.value) if isinstance(func, cst.Attribute) else (None, "")


def keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    """`name=value` as an argument."""
    return with_keyword(cst.Arg(value), name)


def with_keyword(arg: cst.Arg, name: str) -> cst.Arg:
    """An argument given by keyword, its value, comma and layout kept."""
    bare = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    equal = arg.equal if isinstance(arg.equal, cst.AssignEqual) else bare
    return arg.with_changes(keyword=cst.Name(name), equal=equal)


def attribute(node: cst.BaseExpression, name: str) -> cst.Attribute:
    """`node.name`."""
    return cst.Attribute(node, cst.Name(name))
