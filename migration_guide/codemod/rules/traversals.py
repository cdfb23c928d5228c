# pyright: strict
"""`optim.Traversal` and `optim.t_identity` come from `legacy_optim`.

Before:

    focus = optim.t_identity["encoder"].tree()

After:

    focus = legacy_optim.t_identity["encoder"].tree()

Flax still has them in `flax.traverse_util`, where they are deprecated; these stay.
"""

from migration_guide.codemod.writing.context import Context, Expression, New

_STAYS = "stays on legacy_optim: the traversals in flax.traverse_util are deprecated"
_NAMES = ("Traversal", "t_identity")


def rewrite_reference(context: Context, original: Expression, _: Expression) -> New:
    """See the module."""
    name = context.legacy(original)
    if name not in _NAMES:
        return None
    if context.options.optax_alone:
        context.remark(original, _STAYS)
    return context.reference(f"legacy_optim.{name}")
