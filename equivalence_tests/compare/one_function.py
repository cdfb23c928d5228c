"""Loops that XLA for CPUs compiles as one function: parameters of one element round with them.

From JAX 0.11.1 on it may do so with loops that hold no matrix product of some size. What the
operations on parameters of one element read is then loaded once for several, by an order that the
whole program decides, and by that order the compiler chooses which of two products is fused with
their sum. The other parameters have loops of their own, and their bits.
"""

import jax

from equivalence_tests.compare.comparison import Comparison

FIRST = (0, 11, 1)


def may_be() -> bool:
    """True if this JAX, on this platform, compiles loops so."""
    return jax.default_backend() == "cpu" and jax.__version_info__ >= FIRST


def remark(comparison: Comparison) -> str:
    """A possible reason of what rounds; empty where it is none, or another algorithm is at work."""
    if not (comparison.of_one_element and may_be()):
        return ""
    return (
        "only leaves of one element differ: from JAX 0.11.1 on, XLA for CPUs may compile a loop of "
        "steps as one function, and such leaves round with the rest of it; outside of a loop they "
        "may have the same bits"
    )
