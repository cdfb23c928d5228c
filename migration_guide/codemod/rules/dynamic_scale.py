# pyright: strict
"""`flax.optim.dynamic_scale.DynamicScale` moved to `flax.training.dynamic_scale`.

Before:

    from flax import optim
    scale = optim.DynamicScale()

After:

    from flax.training.dynamic_scale import DynamicScale
    scale = DynamicScale()

The class is the same; Flax moved it when it removed the rest.
"""

from migration_guide.codemod.writing.context import Context, Expression, New


def rewrite_reference(context: Context, original: Expression, _: Expression) -> New:
    """See the module."""
    name = context.legacy(original).removeprefix("dynamic_scale.")
    if name not in ("DynamicScale", "DynamicScaleResult"):
        return None
    return context.by_name("flax.training.dynamic_scale", name)
