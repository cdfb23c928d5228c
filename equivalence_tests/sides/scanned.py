"""The operands of `jax.lax.scan`, in every release of JAX."""

from collections.abc import Mapping
from typing import Any


def constants_and_carry(params: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the numbers of a scan's constants and of its carry; then come the rows."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()
    return len(list(constants)), len(list(carry))
