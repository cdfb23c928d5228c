"""Operations that move, join and reduce entries; `reals.reals` says where each entry is read."""

from equivalence_tests.proof.primitives.primitive import all_of, define

# Copies: what hints at how, not at what, is computed.
COPIES = ("copy", "optimization_barrier", "stop_gradient", "device_put", "sharding_constraint")
# Of these what is never negative stays so.
_KEEP_SIGNS = ("rev", "slice", "concatenate", "dot_general", "cumsum")
_KEEP_SIGNS += tuple(f"reduce_{name}" for name in ("sum", "prod", "max", "min"))
_KEEP_SIGNS += ("broadcast_in_dim", "reshape", "transpose", "splat")

for _name in (*COPIES, "squeeze", "iota", "stack", "reduce_and", "reduce_or", "cumprod"):
    define(_name, elementwise=False)
for _name in _KEEP_SIGNS:
    define(_name, elementwise=False, signs=all_of)
