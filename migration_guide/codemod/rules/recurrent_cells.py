# pyright: strict
"""A recurrent cell of Linen is told its size now; where it was not, that is left to a person.

Before:

    carry = nn.LSTMCell.initialize_carry(key, (batch_size,), hidden_size)
    carry, y = nn.LSTMCell(name="cell")(carry, x)

After:

    # optax-bridge: a cell is told its size now, and makes its carry itself: ...
    carry = nn.LSTMCell.initialize_carry(key, (batch_size,), hidden_size)
    # optax-bridge: a cell has `features` now, ...
    carry, y = nn.LSTMCell(name="cell")(carry, x)

A cell took its size from the carry, which a function of the class made. Parameters have the same
names and values.
"""

import libcst as cst

from legacy_optim.shim import CELLS
from migration_guide.codemod.reading.tree import keyword_of
from migration_guide.codemod.writing.context import Context

_CELLS = {f"flax.linen.{module}{cell}" for module in ("", "recurrent.") for cell in CELLS}
_SIZE = (
    "a cell has `features` now, the size of its carry: {cell}(features=hidden_size); "
    "`optax-bridge run` still takes it from the carry"
)
CARRY = (
    "a cell is told its size now, and makes its carry itself: {cell}(features=size, "
    "parent=None).initialize_carry(rng, (*batch_dims, 1)), where the last number decides nothing"
)


def rewrite_call(context: Context, original: cst.Call, _: cst.Call) -> None:
    """See the module."""
    name = context.name(original.func)
    owner, method = name.rpartition(".")[::2]
    if name in _CELLS and not _says_features(original):
        context.by_hand(original, _SIZE.format(cell=name.rpartition(".")[2]))
    elif method == "initialize_carry" and owner in _CELLS:
        context.by_hand(original, CARRY.format(cell=owner.rpartition(".")[2]))


def _says_features(call: cst.Call) -> bool:
    """True if `features` may be among the arguments: by name, by position, or starred."""
    return any(arg.star or keyword_of(arg) in ("", "features") for arg in call.args)
