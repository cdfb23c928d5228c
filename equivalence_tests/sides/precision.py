"""The floating-point settings of a run: float64 on demand, and what is pinned."""

import contextlib
from collections.abc import Iterator

import jax

# Gradients that come from products of matrices depend on how these are computed: TPUs and newer
# GPUs round the factors first. Closed loops pin it, and say so.
MATMUL_PRECISION = "highest"


@contextlib.contextmanager
def float64(allowed: bool = True) -> Iterator[None]:
    """Within it, arrays of this thread may be float64, or may not."""
    enable = getattr(jax, "enable_x64", None)
    if enable is None:  # before jax 0.8
        from jax.experimental import enable_x64 as enable  # type: ignore[no-redef]
    with enable(allowed):
        yield


@contextlib.contextmanager
def pinned() -> Iterator[str]:
    """Within it, products of matrices are computed in full precision.

    Yields:
      What is pinned, for the report.
    """
    with jax.default_matmul_precision(MATMUL_PRECISION):
        yield f"matmul precision {MATMUL_PRECISION}"
