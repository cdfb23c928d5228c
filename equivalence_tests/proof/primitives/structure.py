"""Operations that move, join and reduce entries; `reals.reals` says where each entry is read."""

from equivalence_tests.proof.primitives.faces import (
    of_operand,
)
from equivalence_tests.proof.primitives.primitive import all_of, define

# Copies: what hints at how, not at what, is computed.
COPIES = (
    "copy",
    "optimization_barrier",
    "stop_gradient",
    "device_put",
    "sharding_constraint",
)


for _name in COPIES:
    define(
        _name,
        elementwise=False,
    )
# The rounding of what moves entries is that of the entries.
define("broadcast_in_dim", elementwise=False, signs=all_of, rounding=of_operand)
define("reshape", elementwise=False, signs=all_of, rounding=of_operand)
define(
    "transpose",
    elementwise=False,
    signs=all_of,
    rounding=of_operand,
)
define("splat", elementwise=False, signs=all_of, rounding=of_operand)
define(
    "squeeze",
    elementwise=False,
)
define(
    "rev",
    elementwise=False,
    signs=all_of,
)
define(
    "iota",
    elementwise=False,
)
define("slice", elementwise=False, signs=all_of)
define(
    "concatenate",
    elementwise=False,
    signs=all_of,
)
define(
    "stack",
    elementwise=False,
)
define("reduce_sum", elementwise=False, signs=all_of)
define("reduce_prod", elementwise=False, signs=all_of)
define(
    "reduce_max",
    elementwise=False,
    signs=all_of,
)
define(
    "reduce_min",
    elementwise=False,
    signs=all_of,
)
define(
    "reduce_and",
    elementwise=False,
)
define(
    "reduce_or",
    elementwise=False,
)
define("dot_general", elementwise=False, signs=all_of)
define("cumsum", elementwise=False, signs=all_of)
define(
    "cumprod",
    elementwise=False,
)
