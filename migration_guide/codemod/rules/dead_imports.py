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

from typing import Any

import libcst as cst

from legacy_optim import gone
from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.marks import PREFIX
from migration_guide.codemod.reading.names import EXPORTS, OPTIM, canonical, is_legacy
from migration_guide.codemod.reading.tree import transform
from migration_guide.codemod.writing.context import Context, Line

_STAYS = (
    "flax.optim is gone, so this import fails now, and a name that it brings has another meaning "
    "here as well, or is passed on: remove it, or import what is still needed of legacy_optim"
)


def rewrite_statement(context: Context, original: Line, _: Line) -> None:
    """Returns the imports that stay, used or not."""
    for node in imports.made_by(original):
        if imports.mentions(node, OPTIM) and is_tried(context, node):
            context.by_hand(
                node,
                "flax.optim is gone, so this import fails now and what handles that takes over: "
                "remove it, or what is not needed any longer",
            )


def is_no_module(name: str) -> bool:
    """True if a name was a module and is an object today, as `jax.config` is."""
    return gone.find(name) is None and gone.find_module(name) is not None


def is_tried(context: Context, node: cst.CSTNode) -> bool:
    """True if a statement stands within `try:`."""
    return any(isinstance(above, cst.Try | cst.TryStar) for above in context.ancestors(node))


def rewrite_module(
    context: Context, original: cst.Module, updated: cst.Module
) -> cst.Module | None:
    """See the module."""
    before, after = imports.references(original), imports.references(updated)

    def is_dead(name: str, bound: str, dotted: bool) -> bool:
        if bound == "*":
            return is_legacy(name) and not any(ref.split(".")[0] in EXPORTS for ref in after)
        is_gone = (
            canonical(name) in context.removed or name == OPTIM or name.startswith(f"{OPTIM}.")
        )
        if is_gone and bound in {name for _, name in context.named}:
            return True  # it is imported from elsewhere now, under the same name
        if dotted and is_no_module(name):
            return True
        if dotted and is_gone:  # `import flax.optim` binds flax
            return not any(f"{ref}.".startswith(f"{name}.") for ref in after)
        root = bound.split(".")[0]
        used_before = any(ref.split(".")[0] == root for ref in before)
        used_after = any(ref.split(".")[0] == root for ref in after)
        return not used_after and (is_gone or used_before)

    new = _with_comments(context, original, imports.without(updated, is_dead, after))
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
