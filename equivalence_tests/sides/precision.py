# pyright: strict
"""The floating-point settings of a run: float64 on demand, and the pinned ones."""

import contextlib
from collections.abc import Generator

import jax

# Gradients that come from products of matrices depend on how these are computed: TPUs and newer
# GPUs round the factors first. Closed loops pin it, and say so.
MATMUL_PRECISION = "highest"


@contextlib.contextmanager
def float64(allowed: bool = True) -> Generator[None, None, None]:
    """Context in which float64 is enabled, or disabled, for this thread."""
    with jax.enable_x64(allowed):
        yield


@contextlib.contextmanager
def pin_precision() -> Generator[str, None, None]:
    """Context in which products of matrices are computed in full precision."""
    with jax.default_matmul_precision(MATMUL_PRECISION):
        yield f"matmul precision {MATMUL_PRECISION}"
