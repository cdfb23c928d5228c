# pyright: strict
"""Arrays' own methods that take other arguments now, or are gone.

Before:

    y = jnp.exp(x).clip(a_max=1.0)
    z = x.clip(a_min=0.0)
    data = x.tostring()

After:

    y = jnp.exp(x).clip(max=1.0)
    # optax-bridge: of JAX's arrays, clip takes min= and max= now, not a_min= and a_max=
    z = x.clip(a_min=0.0)
    # optax-bridge (note): if this is an array: numpy.ndarray.tostring is gone: ...
    data = x.tostring()

What a method belongs to, only the running program knows, as a rule: a call is rewritten where its
object is seen to be made by JAX or NumPy, else a person is told.
"""

import libcst as cst

from legacy_optim import gone
from migration_guide.codemod.inference.kinds import Instance
from migration_guide.codemod.reading.tree import keyword_of
from migration_guide.codemod.writing import constants
from migration_guide.codemod.writing.context import Context, New

IN_DEFINITIONS = True
_LIMITS = {"a_min": "min", "a_max": "max"}
_CLIP = "of JAX's arrays, clip takes min= and max= now, not a_min= and a_max="
# Gone from arrays, and hardly the name of anything else.
_GONE = ("itemset", "newbyteorder", "ptp", "tostring")
_ARRAYS = ("jax.numpy.", "jax.random.", "jax.nn.", "jax.lax.", "numpy.")


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """See the module."""
    func = original.func
    if not isinstance(func, cst.Attribute) or context.name(func):
        return None
    if any(isinstance(atom, Instance) for atom in context.analysis.kind(func.value)):
        return None
    entry = gone.find(f"numpy.ndarray.{func.attr.value}") if func.attr.value in _GONE else None
    if entry is not None and context.once(_has_arrays):
        context.remark(original, f"if this is an array: {entry.message}")
    names = [keyword_of(arg) for arg in original.args]
    if func.attr.value != "clip" or not _LIMITS.keys() & set(names):
        return None
    if not _is_array(context, func.value, set()):
        context.by_hand(original, _CLIP)
        return None
    args = [
        arg.with_changes(keyword=cst.Name(_LIMITS[name])) if name in _LIMITS else arg
        for name, arg in zip(names, updated.args, strict=True)
    ]
    return updated.with_changes(args=args)


def _is_array(context: Context, node: cst.BaseExpression, seen: set[cst.CSTNode]) -> bool:
    """True if an expression is surely an array: made by JAX or NumPy, or arithmetic of those."""
    if isinstance(node, cst.Name):
        origin = constants.assigned_value(context.analysis, node)
        if origin is None or origin in seen:
            return False
        seen.add(origin)
        return _is_array(context, origin, seen)
    if isinstance(node, cst.Call):
        if context.name(node.func).startswith(_ARRAYS):
            return True
        return isinstance(node.func, cst.Attribute) and _is_array(context, node.func.value, seen)
    if isinstance(node, cst.BinaryOperation):
        return any(_is_array(context, part, seen) for part in (node.left, node.right))
    if isinstance(node, cst.UnaryOperation):
        return _is_array(context, node.expression, seen)
    return isinstance(node, cst.Subscript) and _is_array(context, node.value, seen)


def _has_arrays(context: Context) -> bool:
    names = (context.name(node) for node in context.analysis.facts.attributes)
    return any(name.startswith(("jax.", "numpy.")) for name in names)
