# pyright: strict
"""Names whose replacement only a person can choose get a comment: one table, name -> comment.

Before:

    carry = nn.LSTMCell.initialize_carry(key, (batch_size,), hidden_size)
    carry, y = nn.LSTMCell(name="cell")(carry, x)

After:

    # optax-bridge: a cell is told its size now, and makes its carry itself: ...
    carry = nn.LSTMCell.initialize_carry(key, (batch_size,), hidden_size)
    # optax-bridge: a cell has `features` now, ...
    carry, y = nn.LSTMCell(name="cell")(carry, x)

A note on the modules before Linen, `flax.nn`, stands at their import alone: porting them is another
migration. What belongs to the optimizer is rewritten all the same.
"""

import libcst as cst

from legacy_optim.shim import CELLS
from migration_guide.codemod.reading.imports import made_by, mentions
from migration_guide.codemod.reading.tree import argument, keyword_of
from migration_guide.codemod.rules.restoring import reads_nothing_old
from migration_guide.codemod.writing.context import Context, Expression, Line

IN_DEFINITIONS = True
ANSWERS_FOR = ("flax.nn", "flax.deprecated")
_PRE_LINEN = (
    "flax.nn went with flax 0.4: port these modules to flax.linen, whose parameter trees differ"
)
_SIZE = (
    "a cell has `features` now, the size of its carry: {cell}(features=hidden_size); "
    "`optax-bridge run` still takes it from the carry"
)
CARRY = (
    "a cell is told its size now, and makes its carry itself: {cell}(features=size, "
    "parent=None).initialize_carry(rng, (*batch_dims, 1)), where the last number decides nothing"
)
_SHAPES = (
    "{cell} hands out arrays of another shape than the template's without an error: "
    "optax_bridge.checkpoints.restore_checkpoint refuses them"
)
_KEEP = (
    "`keep` deletes old checkpoints, those of flax.optim first: copy them if the training may have "
    "to go back to them"
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


def rewrite_call(context: Context, original: cst.Call, _: cst.Call) -> None:
    """See the module."""
    name = context.name(original.func)
    if name in _CALLED:
        context.by_hand(original, _CALLED[name].format(cell=name.split(".")[-2]))
    says_features = any(a.star or keyword_of(a) in ("", "features") for a in original.args)
    if name in _WITHOUT_FEATURES and not says_features:
        context.by_hand(original, _WITHOUT_FEATURES[name].format(cell=name.rpartition(".")[2]))
    keep = argument(original, 4, "keep") if name in _WITH_KEEP else None
    keeps_all = keep is None or "inf" in context.code(keep)  # float("inf")
    if not keeps_all and context.uses_optim and context.once(_restores):
        context.note(original, _WITH_KEEP[name])


def rewrite_reference(context: Context, original: Expression, _: Expression) -> None:
    """A handler of Orbax's; `flax.nn.Dense` after `import flax`, the first one in a file."""
    name = context.name(original)
    if name in _NAMED and context.uses_optim and not reads_nothing_old(context):
        context.remark(original, _NAMED[name].format(cell=name.rpartition(".")[2]))
    if isinstance(original, cst.Attribute) and name in ANSWERS_FOR:
        uses = [n for n in context.analysis.facts.attributes if context.name(n) in ANSWERS_FOR]
        if original is min(uses, key=context.line):
            context.by_hand(original, _PRE_LINEN)


def rewrite_statement(context: Context, original: Line, _: Line) -> None:
    """The import of a module before Linen."""
    if any(mentions(node, module) for node in made_by(original) for module in ANSWERS_FOR):
        context.by_hand(original, _PRE_LINEN)


def _restores(context: Context) -> bool:
    home = "flax.training.checkpoints.restore_checkpoint"
    return any(context.name(call.func) == home for call in context.analysis.facts.calls)
