# pyright: strict
"""Reads paths as far as they can be seen without running the program."""

import os

import libcst as cst

from migration_guide.codemod.reading.tree import last_name
from migration_guide.codemod.writing.context import Context

ABSOLUTE_FOLDER = "absolute_folder"  # the function that files get whose folders are unknown
_DEEPEST = 8  # names that are assigned names that are assigned names
_SAME = ("os.path.abspath", "os.path.realpath", "os.path.normpath", "os.fspath", "pathlib.Path")
_ABSOLUTE = (
    "os.path.abspath", "os.path.realpath", "os.getcwd", "tempfile.mkdtemp", "pathlib.Path.cwd",
    "tempfile.gettempdir", "tempfile.TemporaryDirectory", "pathlib.Path.home",
)  # fmt: skip


def text(context: Context, node: cst.BaseExpression, deep: int = 0) -> str | None:
    """The string or path that an expression is, wherever the program runs; None if unknown."""
    if deep > _DEEPEST:
        return None
    if isinstance(node, cst.SimpleString | cst.ConcatenatedString):
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    if isinstance(node, cst.Name):
        origin = assigned_value(context, node)
        return None if origin is None else text(context, origin, deep + 1)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add | cst.Divide):
        parts = [text(context, part, deep + 1) for part in (node.left, node.right)]
        texts = [part for part in parts if part is not None]
        between = "" if isinstance(node.operator, cst.Add) else "/"
        return between.join(texts) if len(texts) == 2 else None
    if isinstance(node, cst.Call) and node.args and not any(a.keyword or a.star for a in node.args):
        called = context.name(node.func)
        is_str = isinstance(node.func, cst.Name) and node.func.value == "str" and not called
        if called == "os.path.join":
            parts = [text(context, arg.value, deep + 1) for arg in node.args]
            texts = [part for part in parts if part is not None]
            return os.path.join(*texts) if len(texts) == len(parts) else None
        if (called in _SAME or is_str) and len(node.args) == 1:
            return text(context, node.args[0].value, deep + 1)
    return None


def is_absolute(context: Context, node: cst.BaseExpression, deep: int = 0) -> bool:
    """True if an expression is surely an absolute path or the address of a store."""
    if deep > _DEEPEST:
        return False
    if isinstance(node, cst.Name):
        origin = assigned_value(context, node)
        return origin is not None and is_absolute(context, origin, deep + 1)
    if isinstance(node, cst.BinaryOperation):
        return is_absolute(context, node.left, deep + 1)
    if isinstance(node, cst.Call):
        called = context.name(node.func)
        if called in _ABSOLUTE or last_name(node.func).rstrip("_") == ABSOLUTE_FOLDER:
            return True
        if last_name(node.func) in ("resolve", "absolute") and not node.args:
            return True
        if called == "os.path.join" or called in _SAME or last_name(node.func) == "str":
            return bool(node.args) and is_absolute(context, node.args[0].value, deep + 1)
        if called == "os.path.expanduser" and node.args:
            return (text(context, node.args[0].value) or "").startswith(("~", "/"))
    value = text(context, node)
    return value is not None and (value.startswith("/") or "://" in value)


def assigned_value(context: Context, node: cst.Name) -> cst.BaseExpression | None:
    """Returns the value that `=` or `with ... as` binds to a variable, if it is bound once."""
    assignments = context.analysis.names.assignments(node)
    if len(assignments) != 1:
        return None
    bound = getattr(assignments[0], "node", None)
    above = context.parent(bound) if bound is not None else None
    if isinstance(above, cst.AnnAssign):
        return above.value
    if isinstance(above, cst.AsName):
        above = context.parent(above)
    if isinstance(above, cst.WithItem):
        return above.item
    statement = context.parent(above) if isinstance(above, cst.AssignTarget) else None
    return statement.value if isinstance(statement, cst.Assign) else None
