"""Fixtures that the suite needs wherever it runs, from a checkout or as installed."""

import os
import sys

import pytest

# Eight host devices for the sharded cases, unless the caller chose or JAX is already there.
_FLAG = "--xla_force_host_platform_device_count"
if "jax" not in sys.modules and _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=8".strip()


def pytest_configure(config: pytest.Config) -> None:
    """Declares the mark for where the repository's own settings are not there."""
    config.addinivalue_line("markers", "sample(n): a run of everything takes n of the cases")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves a slice of the matrix, unless all of it was asked for."""
    if config.getoption("--equivalence-full", default=False):
        return
    kept, left_out = [], []
    for item in items:
        slice_of = getattr(getattr(item, "cls", None), "slice_of_tests", None)
        (kept if slice_of is None or item.name in slice_of else left_out).append(item)
    if left_out:
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)
