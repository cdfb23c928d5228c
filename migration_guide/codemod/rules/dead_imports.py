# pyright: strict
"""Removes imports that nothing uses any longer; those that are still used stay.

Before:

    from flax import optim, struct
    from flax.optim import Adam  # never used

After:

    from flax import struct

An import of flax.optim breaks a program on today's Flax even where nothing uses it. An import
within `try:`, which has an alternative that takes over now, is left for a person.
"""

from collections.abc import Callable, Sequence
from typing import Any

import libcst as cst

from legacy_optim import gone
from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.marks import PREFIX, is_skipped
from migration_guide.codemod.reading.names import EXPORTS, OPTIM, canonical, is_legacy
from migration_guide.codemod.reading.tree import transform
from migration_guide.codemod.writing.context import Context, Line

_STAYS = (
    "flax.optim is gone, so this import fails now, and a name that it binds also has another "
    "meaning here, or is passed on: remove it, or import the names still needed from legacy_optim"
)
_NOTHING: cst.FlattenSentinel[imports.ImportNode] = cst.FlattenSentinel[imports.ImportNode]([])


def rewrite_statement(context: Context, original: Line, _: Line) -> None:
    """Returns the imports that stay, used or not."""
    for node in imports.made_by(original):
        if imports.mentions(node, OPTIM) and is_tried(context, node):
            context.by_hand(
                node,
                "flax.optim is gone, so this import fails now and its handler takes over: remove "
                "the import, or the branch that is no longer needed",
            )


def is_no_module(name: str) -> bool:
    """True if a name was a module and is an object today, as `jax.config` is."""
    return gone.find(name) is None and gone.find_module(name) is not None


def is_tried(context: Context, node: cst.CSTNode) -> bool:
    """True if a statement is inside `try:`."""
    return any(isinstance(above, cst.Try | cst.TryStar) for above in context.ancestors(node))


def rewrite_module(
    context: Context, original: cst.Module, updated: cst.Module
) -> cst.Module | None:
    """See the module."""
    old_names, new_names = context.analysis.references, imports.references(updated)

    def is_dead(name: str, bound: str, dotted: bool) -> bool:
        if bound == "*":
            return is_legacy(name) and not any(ref.split(".")[0] in EXPORTS for ref in new_names)
        is_gone = (
            canonical(name) in context.removed or name == OPTIM or name.startswith(f"{OPTIM}.")
        )
        if is_gone and bound in {name for _, name in context.named}:
            return True  # it is imported from elsewhere now, under the same name
        if dotted and is_no_module(name):
            return True
        if dotted and is_gone:  # `import flax.optim` binds flax
            return not any(f"{ref}.".startswith(f"{name}.") for ref in new_names)
        root = bound.split(".")[0]
        used_before = any(ref.split(".")[0] == root for ref in old_names)
        used_after = any(ref.split(".")[0] == root for ref in new_names)
        return not used_after and (is_gone or used_before)

    new = _with_comments(context, original, _without(updated, is_dead, new_names))
    return new if new is not updated else None


def _with_comments(context: Context, original: cst.Module, updated: cst.Module) -> cst.Module:
    """Explains an import that stays, where nothing else of the file is left by hand."""
    if any(by_hand for _, _, by_hand in context.remarks):
        return updated
    skipped_names = {
        ref.split(".")[0] for node in context.skipped_statements for ref in imports.references(node)
    }
    remaining = [
        node
        for node in imports.statements(updated)
        if imports.mentions(node, OPTIM) and not _bound(node) & skipped_names
    ]
    if not remaining:
        return updated
    names = set[str]().union(*map(_bound, remaining))
    for node in imports.statements(original):
        if imports.mentions(node, OPTIM) and _bound(node) & names:
            context.by_hand(node, _STAYS)
    comment = cst.EmptyLine(comment=cst.Comment(f"{PREFIX}{_STAYS}"))

    def leave(node: Any, changed: Any) -> Any:
        if not isinstance(node, cst.SimpleStatementLine) or not any(
            n in remaining for n in node.body
        ):
            return changed
        return changed.with_changes(leading_lines=[*changed.leading_lines, comment])

    return transform(updated, leave, lambda node: not isinstance(node, cst.BaseExpression))


def _bound(node: imports.ImportNode) -> set[str]:
    return {imports.star(node) or "", *(bound for _, bound, _ in imports.aliases(node))} - {""}


def _without(
    module: cst.Module, is_dead: Callable[[str, str, bool], bool], used: set[str]
) -> cst.Module:
    """The module without some aliases and the statements that become empty."""
    needed = {reference.split(".")[0] for reference in used} - _packages_at_the_top(module)

    def leave(original: Any, updated: Any) -> Any:
        if isinstance(updated, cst.Import | cst.ImportFrom):
            return _without_aliases(updated, is_dead, needed)
        if updated is original:
            return updated
        if isinstance(updated, cst.SimpleStatementLine) and updated.body:
            *remaining, last = updated.body
            last = last.with_changes(semicolon=original.body[-1].semicolon)
            return updated.with_changes(body=[*remaining, last])
        if isinstance(updated, cst.IndentedBlock | cst.Module):
            return updated.with_changes(body=_without_empty(updated.body))
        return updated

    def into(node: cst.CSTNode) -> bool:
        if isinstance(node, cst.SimpleStatementLine):
            imported = any(isinstance(line, cst.Import | cst.ImportFrom) for line in node.body)
            return imported and not is_skipped(node)
        return not isinstance(node, cst.Try | cst.TryStar | cst.BaseExpression)

    return transform(module, leave, into)


def _without_aliases(
    node: imports.ImportNode, is_dead: Callable[[str, str, bool], bool], needed: set[str]
) -> imports.ImportNode | cst.FlattenSentinel[imports.ImportNode]:
    """The import without its dead names; nothing in its place if none remains."""
    if isinstance(node.names, cst.ImportStar):
        return _NOTHING if is_dead(imports.star(node), "*", False) else node
    if isinstance(node, cst.ImportFrom) and node.relative:
        return node
    remaining: list[cst.ImportAlias] = []
    for alias, triple in zip(node.names, imports.aliases(node), strict=True):
        if not is_dead(*triple):
            remaining.append(alias)
            continue
        root = triple[1].split(".")[0]
        if triple[2] and root in needed:
            # `import flax.optim` bound flax
            remaining.append(alias.with_changes(name=cst.Name(root)))
    if len(remaining) == len(node.names) and all(
        a is b for a, b in zip(remaining, node.names, strict=True)
    ):
        return node
    if not remaining:
        return _NOTHING
    remaining[-1] = remaining[-1].with_changes(comma=node.names[-1].comma)
    return node.with_changes(names=remaining)


def _packages_at_the_top(module: cst.Module) -> set[str]:
    """Returns the packages that `import jax` and the like bind above all other statements."""
    packages: set[str] = set()
    for line in module.body:
        for node in line.body if isinstance(line, cst.SimpleStatementLine) else (line,):
            if isinstance(node, cst.Import):
                names = {imports.bound(alias) for alias in node.names if alias.asname is None}
                packages |= {name for name in names if "." not in name}
            elif not isinstance(getattr(node, "value", node), cst.ImportFrom | cst.SimpleString):
                return packages
    return packages


def _without_empty(body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """The statements without the empty ones, whose comments and blank lines go to the next."""
    remaining: list[cst.BaseStatement] = []
    pending: list[cst.EmptyLine] = []
    for statement in body:
        lines = [*getattr(statement, "leading_lines", ())]
        if pending:
            has_comment = any(line.comment is not None for line in pending)
            lines = [*pending, *lines] if has_comment else _longer(pending, lines)
            pending = []
        if isinstance(statement, cst.SimpleStatementLine) and not statement.body:
            pending = lines
            continue
        if lines != [*getattr(statement, "leading_lines", ())]:
            statement = statement.with_changes(leading_lines=lines)
        remaining.append(statement)
    return remaining


def _longer(first: list[cst.EmptyLine], second: list[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """The second lines, with as many blank ones at the beginning as the first has at least."""
    return [*first[imports.leading_blank(second) :], *second]
