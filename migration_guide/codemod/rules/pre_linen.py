# pyright: strict
"""`flax.nn`, the modules before Linen, is left for a person.

Before:

    from flax import nn, optim

After:

    # optax-bridge: flax.nn went with flax 0.4: port these modules to flax.linen
    from flax import nn

Modules of `flax.nn` keep their parameters in another layout and are called in another way; moving
them to Linen is another migration. What belongs to the optimizer is rewritten all the same.
"""

import libcst as cst

from migration_guide.codemod.reading.imports import made_by, mentions
from migration_guide.codemod.writing.context import Context, Expression, Line

IN_DEFINITIONS = True
ANSWERS_FOR = ("flax.nn", "flax.deprecated")
_MESSAGE = (
    "flax.nn went with flax 0.4: port these modules to flax.linen, whose parameter trees differ"
)


def rewrite_statement(context: Context, original: Line, _: Line) -> None:
    """Reports the import."""
    for node in made_by(original):
        if any(mentions(node, module) for module in ANSWERS_FOR):
            context.by_hand(original, _MESSAGE)


def rewrite_reference(context: Context, original: Expression, _: Expression) -> None:
    """`flax.nn.Dense` after `import flax`: the first one in a file."""
    if not isinstance(original, cst.Attribute) or not _is_gone(context, original):
        return
    uses = [node for node in context.analysis.facts.attributes if _is_gone(context, node)]
    if original is min(uses, key=context.line):
        context.by_hand(original, _MESSAGE)


def _is_gone(context: Context, node: cst.Attribute) -> bool:
    """True if a node is `flax.nn` itself, reached through `flax`."""
    return context.name(node) in ANSWERS_FOR
