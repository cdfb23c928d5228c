"""One module through all rules, and the checks without which nothing is written."""

import re
import symtable
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import libcst as cst
from libcst.metadata import Assignment

from migration_guide.codemod import imports
from migration_guide.codemod.analysis import Analysis, Project
from migration_guide.codemod.context import Context, Message, Options
from migration_guide.codemod.names import dotted
from migration_guide.codemod.rename import renamed
from migration_guide.codemod.rules import HANDLERS, RULES

_BUILTIN = frozenset(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)
_MODULE_NAMES = frozenset(
    [
        "__file__",
        "__name__",
        "__doc__",
        "__spec__",
        "__package__",
        "__path__",
        "__loader__",
        "__builtins__",
        "__debug__",
        "__annotations__",
        "__class__",
        "get_ipython",
        "display",
    ]
)


@dataclass(frozen=True)
class Rewritten:
    """What became of a module.

    Attributes:
      code: the new source; the old one where nothing changed or nothing is safe.
      messages: for the user, by line.
      counts: rule -> how often it applied.
      refused: why the result was thrown away, or "".
    """

    code: str
    messages: tuple[Message, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    refused: str = ""


def rewrite(
    code: str,
    options: Options,
    project: Project | None = None,
    stem: str = "",
    analysis: Analysis | None = None,
) -> Rewritten:
    """Applies the rules to a module's source.

    Args:
      code: the source.
      options: what the user asked for.
      project: what is known from other files.
      stem: the module's own name.
      analysis: of this source with this project, if there is one already.

    Returns:
      The result, checked: it parses, has no new undefined name, and a second run changes nothing.
      Where that cannot be had, the source as it was, and why.
    """
    project = project or Project()
    try:
        analysis = analysis or Analysis(cst.parse_module(code), project, stem)
        new, context = _applied(analysis, options)
    except cst.ParserSyntaxError as error:
        return Rewritten(code, refused=f"not Python that can be read: line {error.raw_line}")
    except RecursionError:
        return Rewritten(code, refused="nested too deeply to be read")
    messages = tuple(sorted(set(context.messages)))
    if new == code:
        return Rewritten(code, messages)
    refused = _objection(code, new, context, options, project, stem)
    if refused:
        return Rewritten(code, messages, refused=refused)
    return Rewritten(new, messages, tuple(sorted(context.counts.items())))


def _applied(analysis: Analysis, options: Options) -> tuple[str, Context]:
    context = Context(analysis, options)
    updated = analysis.module.visit(_Dispatcher(context))
    assert isinstance(updated, cst.Module)
    if options.rename:
        updated, count = renamed(context, updated)
        if count:
            context.counts["rename"] += count
    updated = imports.with_imports(updated, context.needed)
    for rule in RULES:
        handler = rule.handlers.get("rewrite_module")
        if handler is None or not _wanted(options, rule.name):
            continue
        new = handler(context, analysis.module, updated)
        if new is not None:
            context.counts[rule.name] += 1
            updated = new
    return updated.code, context


def _objection(
    code: str, new: str, context: Context, options: Options, project: Project, stem: str
) -> str:
    """Why a result must not be written, or ""."""
    taken = sorted(name for name in context.needed if _is_taken(context, name))
    if taken:
        return f"the name {taken[0]!r} is something else here: rename it first"
    try:
        before, after = undefined(code), undefined(new)
    except SyntaxError as error:
        return (
            f"the result would not be Python (line {error.lineno}: {error.msg}); please report this"
        )
    if after - before:
        return (
            f"the result would use {sorted(after - before)[0]!r}, which nothing defines; please "
            f"report this"
        )
    again, _ = _applied(Analysis(cst.parse_module(new), project, stem), options)
    if again != new:
        return "a second run would change the result once more; please report this"
    return ""


def _is_taken(context: Context, name: str) -> bool:
    """Whether some scope binds a module's name to something else."""
    root = name.split(".")[0]
    scopes = {scope for scope in context.analysis.scopes.values() if scope is not None}
    for scope in scopes:
        for assignment in scope.assignments:
            if assignment.name == root and isinstance(assignment, Assignment):
                return not isinstance(assignment.node, cst.Import | cst.ImportFrom)
    return False


def undefined(code: str) -> set[str]:
    """Names that a module reads somewhere and that nothing in it defines.

    Raises:
      SyntaxError: it is not Python.
    """
    table = symtable.symtable(code, "<module>", "exec")
    defined = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    used: set[str] = set()

    def visit(scope: symtable.SymbolTable) -> None:
        for symbol in scope.get_symbols():
            if scope.get_type() == "module" or symbol.is_global():
                if symbol.is_referenced():
                    used.add(symbol.get_name())
                if symbol.is_declared_global() and symbol.is_assigned():
                    defined.add(symbol.get_name())
        for child in scope.get_children():
            visit(child)

    visit(table)
    namespaces = {child.get_name() for child in table.get_children()}
    return used - defined - namespaces - _BUILTIN - _MODULE_NAMES


def _wanted(options: Options, name: str) -> bool:
    return options.rules is None or name in options.rules


# What a definition of the user's own does inside stays legacy code.
_NOT_IN_DEFINITIONS = ("rewrite_call", "rewrite_attribute", "rewrite_statement")


class _Dispatcher(cst.CSTTransformer):
    """Hands every node to the rules that may want it."""

    def __init__(self, context: Context):
        super().__init__()
        self._context = context
        self._handlers: dict[str, list[tuple[str, Callable[..., Any]]]] = {
            kind: [
                (r.name, r.handlers[kind])
                for r in RULES
                if kind in r.handlers and _wanted(context.options, r.name)
            ]
            for kind in HANDLERS
        }

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        node = super().on_leave(original_node, updated_node)
        if isinstance(original_node, cst.Call):
            node = self._through("rewrite_call", original_node, node, cst.Call)
        elif isinstance(original_node, cst.Attribute):
            node = self._through("rewrite_attribute", original_node, node, cst.Attribute)
            if node is updated_node and self._context.name(original_node):
                node = self._through("rewrite_reference", original_node, node, cst.Attribute)
        elif isinstance(original_node, cst.Name) and self._is_use(original_node):
            node = self._through("rewrite_reference", original_node, node, cst.Name)
        elif isinstance(original_node, cst.ClassDef):
            node = self._through("rewrite_class", original_node, node, cst.ClassDef)
        elif isinstance(original_node, cst.SimpleStatementLine):
            node = self._through("rewrite_statement", original_node, node, cst.SimpleStatementLine)
        elif isinstance(original_node, cst.SimpleString) and self._context.in_annotation(
            original_node
        ):
            node = self._in_string(original_node, node)
        comments = self._context.comments.get(original_node)
        return _commented(node, comments) if comments else node

    def _through(self, kind: str, original: Any, updated: Any, expected: type) -> Any:
        inside = kind in _NOT_IN_DEFINITIONS and self._context.legacy_class(original) is not None
        for name, handler in self._handlers[kind]:
            if inside and not name.startswith("jax_"):
                continue
            if not isinstance(updated, expected):
                break
            new = handler(self._context, original, updated)
            if new is not None:
                self._context.counts[name] += 1
                if kind == "rewrite_reference" and original.lpar and not new.lpar:
                    new = new.with_changes(lpar=original.lpar, rpar=original.rpar)
                updated = new
        return updated

    def _is_use(self, node: cst.Name) -> bool:
        above = self._context.parent(node)
        if isinstance(above, cst.Attribute) and above.attr is node:
            return False
        if isinstance(above, cst.Arg) and above.keyword is node:
            return False
        if isinstance(above, cst.Param | cst.FunctionDef | cst.ClassDef) and above.name is node:
            return False
        binds = cst.ImportAlias | cst.AsName | cst.NameItem | cst.AssignTarget
        return not isinstance(above, binds) and bool(self._context.name(node))

    def _in_string(self, original: cst.SimpleString, updated: Any) -> Any:
        """`'optim.Optimizer'` as an annotation: every dotted name in it that a rule knows."""

        def replaced(match: re.Match[str]) -> str:
            try:
                node = cst.parse_expression(match.group())
            except cst.ParserSyntaxError:
                return match.group()
            self._context.analysis.parents = _Parents(
                self._context.analysis.parents, node, original
            )
            new = (
                self._through("rewrite_reference", node, node, type(node))
                if self._context.name(node)
                else node
            )
            return dotted(new) or match.group()

        text = re.sub(r"[A-Za-z_]\w*(?:\.\w+)*", replaced, original.value)
        return updated if text == original.value else updated.with_changes(value=text)


class _Parents(dict[cst.CSTNode, cst.CSTNode]):
    """Parents of the original nodes, and of one that was parsed from a string in their midst."""

    def __init__(self, parents: Any, node: cst.CSTNode, string: cst.CSTNode):
        super().__init__({node: parents[string]})
        self._rest = parents

    def __missing__(self, key: cst.CSTNode) -> cst.CSTNode:
        return self._rest[key]

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self or key in self._rest else default


def _commented(node: Any, comments: list[str]) -> Any:
    """A statement with comments above it."""
    lines = [cst.EmptyLine(comment=cst.Comment(text)) for text in dict.fromkeys(comments)]
    if isinstance(node, cst.FlattenSentinel):
        first, *rest = node
        return cst.FlattenSentinel([_commented(first, comments), *rest])
    return node.with_changes(leading_lines=[*node.leading_lines, *lines])
