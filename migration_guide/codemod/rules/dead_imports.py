"""Imports that nothing uses any longer go; what is still used stays, whatever else was rewritten.

Before:

    from flax import optim, struct
    from flax.optim import Adam  # never used

After:

    from flax import struct

An import of flax.optim breaks a program on today's Flax even where nothing uses it. An
`__init__.py` may import for others, so there it is left for a person; so are an import within
`try:`, which has an alternative that takes over now, and `import *`.
"""

import libcst as cst

from migration_guide.codemod import imports
from migration_guide.codemod.context import Context
from migration_guide.codemod.names import OPTIM, canonical, dotted


def rewrite_statement(
    context: Context, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine
) -> None:
    """Imports that stay whatever uses them."""
    del updated
    for node in original.body:
        if not isinstance(node, cst.Import | cst.ImportFrom):
            continue
        if isinstance(node.names, cst.ImportStar):
            module = dotted(node.module) if isinstance(node, cst.ImportFrom) and node.module else ""
            if module == "flax" or f"{module}.".startswith(f"{OPTIM}."):
                context.by_hand(
                    node,
                    "nobody can tell which names come from import *: import them by name, and run "
                    "this again",
                )
        elif imports.mentions(node, OPTIM) and _is_tried(context, node):
            context.by_hand(
                node,
                "flax.optim is gone, so this import fails now and what handles that takes over: "
                "remove it, or what is not needed any longer",
            )


def _is_tried(context: Context, node: cst.CSTNode) -> bool:
    return any(isinstance(above, cst.Try | cst.TryStar) for above in context.ancestors(node))


def rewrite_module(
    context: Context, original: cst.Module, updated: cst.Module
) -> cst.Module | None:
    """See the module."""
    before, after = imports.references(original), imports.references(updated)

    def is_dead(name: str, bound: str, dotted: bool) -> bool:
        gone = canonical(name) in context.removed or name == OPTIM or name.startswith(f"{OPTIM}.")
        if dotted and gone:  # `import flax.optim` binds flax
            return not any(f"{ref}.".startswith(f"{name}.") for ref in after)
        root = bound.split(".")[0]
        used_before = any(ref.split(".")[0] == root for ref in before)
        used_after = any(ref.split(".")[0] == root for ref in after)
        return not used_after and (gone or used_before)

    if context.analysis.stem == "__init__":
        for node in imports.statements(original):
            if any(is_dead(*alias) for alias in imports.aliases(node)) and imports.mentions(
                node, OPTIM
            ):
                context.by_hand(
                    node,
                    "does anyone import this from here? flax.optim is gone: remove it, or import "
                    "its equal",
                )
        return None
    new = imports.without(updated, is_dead, after)
    return new if new is not updated else None
