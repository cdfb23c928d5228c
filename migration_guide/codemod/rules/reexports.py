"""Imports from flax.optim that are there for other modules come from `legacy_optim`.

Before:

    from flax.optim import Adam
    __all__ = ["Adam"]

After:

    # optax-bridge (note): stays on legacy_optim for other modules, ...
    from legacy_optim import Adam
    __all__ = ["Adam"]

Files of the program that use it from here are rewritten as if they imported it themselves; files
outside of the run import a class that works, from whose definitions `optax_bridge.from_legacy`
makes transformations.
"""

from typing import Any

import libcst as cst

from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.names import EXPORTS, OPTIM, canonical, is_legacy
from migration_guide.codemod.writing.context import Context, Line

_MESSAGE = (
    "stays on legacy_optim for other modules, which may import it from here (their definitions "
    "become Optax with optax_bridge.from_legacy(...)); remove it once no file imports it"
)


def rewrite_statement(
    context: Context, original: Line, updated: Line
) -> Line | cst.FlattenSentinel[Line] | None:
    """See the module."""
    if len(original.body) != 1 or not isinstance(node := original.body[0], cst.ImportFrom):
        return None
    if isinstance(node.names, cst.ImportStar) or node.relative:
        return None
    local, moved = [], []
    for alias, (name, bound, _) in zip(node.names, imports.aliases(node), strict=True):
        (moved if _is_for_others(context, canonical(name), bound) else local).append((alias, name))
    if not moved:
        return None
    context.remark(original, _MESSAGE)
    lines: list[Any] = []
    if local:
        aliases = [alias for alias, _ in local]
        aliases[-1] = aliases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        lines.append(updated.with_changes(body=[node.with_changes(names=aliases)]))
    for alias, name in moved:
        bound = imports.bound(alias)
        what = canonical(name).removeprefix(OPTIM).removeprefix(".")
        if not what:
            text = f"import legacy_optim as {bound}"
        else:
            text = f"from legacy_optim import {what}" + (f" as {bound}" if bound != what else "")
        line = cst.parse_statement(text)
        assert isinstance(line, cst.SimpleStatementLine)
        lines.append(line.with_changes(leading_lines=() if lines else updated.leading_lines))
    return cst.FlattenSentinel(lines) if len(lines) > 1 else lines[0]


def _is_for_others(context: Context, name: str, bound: str) -> bool:
    """True if a name of flax.optim is imported here for other modules."""
    if not is_legacy(name):
        return False
    what = name.removeprefix(OPTIM).removeprefix(".")
    if what and what not in EXPORTS:
        return False
    return bound in context.analysis.facts.exported or (
        context.analysis.path.stem == "__init__" and not context.analysis.is_used(bound)
    )
