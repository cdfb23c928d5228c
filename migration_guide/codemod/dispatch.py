"""Hands each node of a module to the rules that may want it."""

import re
from collections.abc import Sequence
from typing import Any

import libcst as cst

from migration_guide.codemod.reading.tree import dotted_name, is_statement, transform, walk
from migration_guide.codemod.registry import HANDLERS, HANDLERS_OF, Rule
from migration_guide.codemod.writing.context import Context


def _not_an_import(node: cst.CSTNode) -> bool:
    return not isinstance(node, cst.Import | cst.ImportFrom)


class Dispatcher:
    """Hands every node to the rules that may want it."""

    def __init__(self, context: Context, rules: Sequence[Rule]):
        self._context = context
        selected = [rule for rule in rules if context.options.selects(rule.name)]
        self._rules = {kind: [r for r in selected if kind in r.handlers] for kind in HANDLERS}
        # Statement -> references to flax.optim in it that no rule took so far, and what they are in
        # the result.
        self._pending: dict[cst.CSTNode, list[tuple[cst.CSTNode, cst.CSTNode]]] = {}
        self._all_rules = len(selected) == len(rules)

    def rewrite(self) -> cst.Module:
        """The module with every node as the rules make it."""
        return transform(self._context.analysis.module, self.leave, _not_an_import)

    def leave(self, original: Any, updated: Any) -> Any:
        """Returns the node that the rules make of a node, with their comments above it."""
        if self._context.is_skipped(original):
            return updated
        kind = type(original)
        if kind is cst.SimpleString and self._context.in_annotation(original):
            return self._rewrite_annotation(original, updated)
        node = updated
        if kind in HANDLERS_OF:
            node = self._through(HANDLERS_OF[kind], original, node)
        if node is updated and self._is_use(original):
            node = self._reference(original, node)
        if is_statement(kind):
            if isinstance(node, cst.BaseStatement):
                node = self._context.without_settled(original, node)
            self._comment_remaining(original, node)
            comments = self._context.comments.get(original)
            return _add_comments(node, comments) if comments else node
        return node

    def _comment_remaining(self, original: cst.BaseStatement, updated: Any) -> None:
        """A comment for names of flax.optim that no rule took, so that none is left in silence."""
        pending = self._pending.pop(original, ())
        if not pending or self._context.comments.get(original):
            return
        roots = updated if isinstance(updated, cst.FlattenSentinel) else [updated]
        remaining = {id(node) for root in roots for node in walk(root)}
        for reference, result in pending:
            if id(result) in remaining:
                name = self._context.name(reference)
                self._context.by_hand(
                    reference,
                    f"{name} has no equivalent: keep it on legacy_optim in place of flax.optim, "
                    "or write its value",
                )
                return

    def _reference(self, original: Any, updated: Any) -> Any:
        node = self._through("rewrite_reference", original, updated)
        if node is updated and self._all_rules and self._context.legacy(original):
            self._pending.setdefault(self._context.statement(original), []).append((original, node))
        return node

    def _through(self, kind: str, original: Any, updated: Any) -> Any:
        # What a definition of the user's own does inside stays legacy code.
        inside = self._context.legacy_class(original) is not None
        for rule in self._rules[kind]:
            if inside and not rule.in_definitions:
                continue
            if not isinstance(updated, type(original)):
                break
            new = rule.handlers[kind](self._context, original, updated)
            if new is not None:
                self._context.counts[rule.name] += 1
                if kind == "rewrite_reference" and original.lpar and not new.lpar:
                    new = new.with_changes(lpar=original.lpar, rpar=original.rpar)
                updated = new
        return updated

    def _is_use(self, node: cst.CSTNode) -> bool:
        """True if a node refers to something imported: a chain of attributes, or a variable."""
        if not isinstance(node, cst.Name):
            return isinstance(node, cst.Attribute) and bool(self._context.name(node))
        above = self._context.parent(node)
        if isinstance(above, cst.Attribute) and above.attr is node:
            return False
        if isinstance(above, cst.Arg) and above.keyword is node:
            return False
        if isinstance(above, cst.Param | cst.FunctionDef | cst.ClassDef) and above.name is node:
            return False
        binds = cst.ImportAlias | cst.AsName | cst.NameItem | cst.AssignTarget
        return not isinstance(above, binds) and bool(self._context.name(node))

    def _rewrite_annotation(self, original: cst.SimpleString, updated: Any) -> Any:
        """`'optim.Optimizer'` as an annotation: every dotted name in it that a rule knows."""

        def replacement(match: re.Match[str]) -> str:
            try:
                node = cst.parse_expression(match.group())
            except cst.ParserSyntaxError:
                return match.group()
            self._context.analysis.parents[node] = self._context.analysis.parents[original]
            new = (
                self._through("rewrite_reference", node, node) if self._context.name(node) else node
            )
            return dotted_name(new) or match.group()

        text = re.sub(r"[A-Za-z_]\w*(?:\.\w+)*", replacement, original.value)
        return updated if text == original.value else updated.with_changes(value=text)


def _add_comments(node: Any, comments: list[str]) -> Any:
    """A statement with comments above it."""
    lines = [cst.EmptyLine(comment=cst.Comment(text)) for text in dict.fromkeys(comments)]
    if isinstance(node, cst.FlattenSentinel):
        if not node:
            return node
        first, *rest = node
        return cst.FlattenSentinel([_add_comments(first, comments), *rest])
    return node.with_changes(leading_lines=[*node.leading_lines, *lines])
