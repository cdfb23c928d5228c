"""Puts imports, functions and JAX's setting, as the rules need them, into a rewritten module."""

import libcst as cst

from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.names import OPTIM
from migration_guide.codemod.writing import placement, random_numbers
from migration_guide.codemod.writing.context import Context

_TOO_EARLY = (
    "these imports import JAX earlier than the program did: if it sets the environment or a flag "
    "before it imports JAX, move them below that"
)


def place(context: Context, module: cst.Module) -> cst.Module:
    """The rewritten module with all that its new code needs."""
    keeps_random_numbers = context.options.old_random_numbers and random_numbers.is_missing(module)
    if keeps_random_numbers:
        context.needed.add("jax")
        context.counts["old_random_numbers"] += 1
    needed = [placement.Import(name) for name in context.needed]
    needed += [placement.Import(home, name) for home, name in context.named]
    original, new = context.analysis.module, module
    new = placement.with_imports(new, needed, _old_import(context), at_top=keeps_random_numbers)
    if placement.comes_too_early(original, new):
        context.note(original.body[0], _TOO_EARLY)
    for name, source in sorted(context.functions.items(), reverse=True):
        new = placement.below_imports(new, source, name)
    return random_numbers.add(new) if keeps_random_numbers else new


def _old_import(context: Context) -> int | None:
    """Returns the position of the import of flax.optim, unless lines are added before it."""
    for index, line in enumerate(context.analysis.module.body):
        if context.comments.get(line) and not isinstance(line, cst.SimpleStatementLine):
            return None
        for node in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(node, cst.Import | cst.ImportFrom) and imports.mentions(node, OPTIM):
                return index
    return None
