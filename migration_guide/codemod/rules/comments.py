# pyright: strict
"""Names whose replacement only a person can choose get a comment: one table, name -> comment.

Before:

    carry = nn.LSTMCell.initialize_carry(key, (batch_size,), hidden_size)
    carry, y = nn.LSTMCell(name="cell")(carry, x)
    same = type(x) is jnp.DeviceArray
    z = x.clip(a_min=0.0)

After:

    # optax-bridge: a cell now knows its size and makes its own carry: ...
    carry = nn.LSTMCell.initialize_carry(key, (batch_size,), hidden_size)
    # optax-bridge: a cell now needs `features`, ...
    carry, y = nn.LSTMCell(name="cell")(carry, x)
    # optax-bridge: jax.Array is abstract, ...
    same = type(x) is jax.Array
    # optax-bridge: the clip method of JAX arrays now takes min= and max=, not a_min= and a_max=
    z = x.clip(a_min=0.0)

The modules before Linen, `flax.nn`, get a comment at their import only: porting them is another
migration. The rest of such a file is rewritten. Only if `import *` of another module may also have
brought names of flax.optim, the whole file stays unchanged: half a migration would be worse.
"""

import libcst as cst

from legacy_optim import gone
from legacy_optim.shim import CELLS
from migration_guide.codemod.inference.kinds import Instance
from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.names import is_legacy
from migration_guide.codemod.reading.tree import argument, keyword_of
from migration_guide.codemod.rules.restoring import reads_nothing_old
from migration_guide.codemod.writing.context import Context, Expression, Line

IN_DEFINITIONS = True
ANSWERS_FOR = ("flax.nn", "flax.deprecated")
_PRE_LINEN = (
    "flax 0.4 removed flax.nn: port these modules to flax.linen, whose parameter trees differ"
)
_SIZE = (
    "a cell now needs `features`, the size of its carry: {cell}(features=hidden_size); only under "
    "`optax-bridge run` it still follows from the carry"
)
CARRY = (
    "a cell now knows its size and makes its own carry: {cell}(features=size, "
    "parent=None).initialize_carry(rng, (*batch_dims, 1)), where the last number has no effect"
)
_SHAPES = (
    "{cell} restores arrays whose shapes differ from the template's without an error: "
    "optax_bridge.checkpoints.restore_checkpoint refuses them"
)
_KEEP = (
    "`keep` deletes old checkpoints, those of flax.optim first: copy them if you may have to go "
    "back to them"
)
_STAR = (
    "it is unclear which names come from import *: import them by name, and run this again; "
    "until then nothing in this file is rewritten"
)
_CLIP = "the clip method of JAX arrays now takes min= and max=, not a_min= and a_max="
_ABSTRACT = (
    "jax.Array is abstract, and no array has it as its type: type(x) never equals it, and it "
    "cannot be a key by type; use isinstance(x, jax.Array), and make arrays with jax.numpy.asarray"
)
_MODULES = ("", "recurrent.")
# Called without `features`; called at all; named in a program that restores; called with `keep`.
_WITHOUT_FEATURES = {f"flax.linen.{m}{cell}": _SIZE for m in _MODULES for cell in CELLS}
_CALLED = {f"{cell}.initialize_carry": CARRY for cell in _WITHOUT_FEATURES}
_NAMED = {
    f"orbax.checkpoint.{name}": _SHAPES
    for name in ("PyTreeCheckpointer", "PyTreeCheckpointHandler", "args.PyTreeRestore")
}
_WITH_KEEP = {
    f"flax.training.checkpoints.save_checkpoint{end}": _KEEP for end in ("", "_multiprocess")
}
# Methods gone from arrays, and hardly the name of anything else.
_OF_ARRAYS = ("itemset", "newbyteorder", "ptp", "tostring")


def rewrite_call(context: Context, original: cst.Call, _: cst.Call) -> None:
    """See the module."""
    name, keywords = context.name(original.func), set(map(keyword_of, original.args))
    if name in _CALLED:
        context.by_hand(original, _CALLED[name].format(cell=name.split(".")[-2]))
    says_features = bool(keywords & {"", "features"}) or any(arg.star for arg in original.args)
    if name in _WITHOUT_FEATURES and not says_features:
        context.by_hand(original, _WITHOUT_FEATURES[name].format(cell=name.rpartition(".")[2]))
    keep = argument(original, 4, "keep") if name in _WITH_KEEP else None
    keeps_all = keep is None or "inf" in context.code(keep)  # float("inf")
    if not keeps_all and context.uses_optim and context.once(_restores):
        context.note(original, _WITH_KEEP[name])
    func = original.func
    if isinstance(func, cst.Attribute) and not name and not _is_of_own_class(context, func.value):
        if func.attr.value == "clip" and keywords & {"a_min", "a_max"}:
            context.by_hand(original, _CLIP)
        elif func.attr.value in _OF_ARRAYS and context.once(_has_arrays):
            entry = gone.find(f"numpy.ndarray.{func.attr.value}")
            if entry is not None:
                context.remark(original, f"if this is an array: {entry.message}")


def rewrite_reference(context: Context, original: Expression, _: Expression) -> None:
    """A handler of Orbax's; arrays' class; `flax.nn.Dense` after `import flax`, the first one."""
    name = context.name(original)
    if name in _NAMED and context.uses_optim and not reads_nothing_old(context):
        context.remark(original, _NAMED[name].format(cell=name.rpartition(".")[2]))
    if isinstance(original, cst.Attribute) and name in ANSWERS_FOR:
        uses = [n for n in context.analysis.facts.attributes if context.name(n) in ANSWERS_FOR]
        if original is min(uses, key=context.line):
            context.by_hand(original, _PRE_LINEN)
    if _is_array_class(context, original) and _is_looked_up(context, original):
        context.by_hand(original, _ABSTRACT)


def rewrite_statement(context: Context, original: Line, _: Line) -> None:
    """The import of a module older than Linen; several star imports with one of flax.optim."""
    for node in imports.made_by(original):
        if any(imports.mentions(node, module) for module in ANSWERS_FOR):
            context.by_hand(original, _PRE_LINEN)
        star = imports.star(node)
        if context.analysis.names.unclear_star and (star == "flax" or is_legacy(star)):
            context.by_hand(node, _STAR)


def _restores(context: Context) -> bool:
    home = "flax.training.checkpoints.restore_checkpoint"
    return any(context.name(call.func) == home for call in context.analysis.facts.calls)


def _is_of_own_class(context: Context, node: cst.BaseExpression) -> bool:
    return any(isinstance(atom, Instance) for atom in context.analysis.kind(node))


def _has_arrays(context: Context) -> bool:
    names = (context.name(node) for node in context.analysis.facts.attributes)
    return any(name.startswith(("jax.", "numpy.")) for name in names)


def _is_array_class(context: Context, node: cst.BaseExpression) -> bool:
    name = context.name(node)
    entry = gone.find(name) if name else None
    return name == "jax.Array" or (entry is not None and entry.new == "jax.Array")


def _is_looked_up(context: Context, node: cst.BaseExpression) -> bool:
    """True if a class is compared with a type, is a key by type, or is called."""
    for above in context.ancestors(node):
        match above:
            case cst.Element() | cst.Tuple() | cst.List() | cst.ComparisonTarget():
                continue
            case cst.Comparison() | cst.Set():
                return True
            case cst.DictElement():
                return above.key is node
            case cst.Call():
                return above.func is node
            case _:
                return False
    return False
