# pyright: strict
"""Reads paths as far as they can be seen without running the program."""

import os

import libcst as cst

from migration_guide.codemod.inference.analysis import Analysis
from migration_guide.codemod.reading.tree import last_name

ABSOLUTE_FOLDER = "absolute_folder"  # the function that files get whose folders are unknown
_DEEPEST = 8  # names that are assigned names that are assigned names
_SAME = ("os.path.abspath", "os.path.realpath", "os.path.normpath", "os.fspath", "pathlib.Path")
_ABSOLUTE = (
    "os.path.abspath", "os.path.realpath", "os.getcwd", "tempfile.mkdtemp", "pathlib.Path.cwd",
    "tempfile.gettempdir", "tempfile.TemporaryDirectory", "pathlib.Path.home",
)  # fmt: skip


def text(a: Analysis, node: cst.BaseExpression, deep: int = 0) -> str | None:
    """The string or path that an expression is, wherever the program runs; None if unknown."""
    if deep > _DEEPEST:
        return None
    if isinstance(node, cst.SimpleString | cst.ConcatenatedString):
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    if isinstance(node, cst.Name):
        origin = assigned_value(a, node)
        return None if origin is None else text(a, origin, deep + 1)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add | cst.Divide):
        parts = [text(a, value, deep + 1) for value in (node.left, node.right)]
        texts = [value for value in parts if value is not None]
        between = "" if isinstance(node.operator, cst.Add) else "/"
        return between.join(texts) if len(texts) == 2 else None
    if isinstance(node, cst.Call) and node.args:
        if any(arg.keyword or arg.star for arg in node.args):
            return None
        called = a.names.of(node.func)
        is_str = isinstance(node.func, cst.Name) and node.func.value == "str" and not called
        if called == "os.path.join":
            parts = [text(a, arg.value, deep + 1) for arg in node.args]
            texts = [value for value in parts if value is not None]
            return os.path.join(*texts) if len(texts) == len(parts) else None
        if (called in _SAME or is_str) and len(node.args) == 1:
            return text(a, node.args[0].value, deep + 1)
    return None


def is_absolute(a: Analysis, node: cst.BaseExpression, deep: int = 0) -> bool:
    """True if an expression is surely an absolute path or the address of a store."""
    if deep > _DEEPEST:
        return False
    if isinstance(node, cst.Name):
        origin = assigned_value(a, node)
        return origin is not None and is_absolute(a, origin, deep + 1)
    if isinstance(node, cst.BinaryOperation):
        return is_absolute(a, node.left, deep + 1)
    if isinstance(node, cst.Call):
        called = a.names.of(node.func)
        if called in _ABSOLUTE or last_name(node.func).rstrip("_") == ABSOLUTE_FOLDER:
            return True
        if last_name(node.func) in ("resolve", "absolute") and not node.args:
            return True
        if called == "os.path.join" or called in _SAME or last_name(node.func) == "str":
            return bool(node.args) and is_absolute(a, node.args[0].value, deep + 1)
        if called == "os.path.expanduser" and node.args:
            return (text(a, node.args[0].value) or "").startswith(("~", "/"))
    value = text(a, node)
    return value is not None and (value.startswith("/") or "://" in value)


def assigned_value(a: Analysis, node: cst.Name) -> cst.BaseExpression | None:
    """Returns the value that `=` or `with ... as` binds to a variable, if it is bound once."""
    assignments = a.names.assignments(node)
    if len(assignments) != 1:
        return None
    bound = getattr(assignments[0], "node", None)
    above = a.parents.get(bound) if bound is not None else None
    if isinstance(above, cst.AnnAssign):
        return above.value
    if isinstance(above, cst.AsName):
        above = a.parents.get(above)
    if isinstance(above, cst.WithItem):
        return above.item
    statement = a.parents.get(above) if isinstance(above, cst.AssignTarget) else None
    return statement.value if isinstance(statement, cst.Assign) else None
