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
    config.addinivalue_line("markers", "full: run with --equivalence-full alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked `full`, unless all was asked for."""
    if not config.getoption("--equivalence-full", default=False):
        full = [item for item in items if item.get_closest_marker("full")]
        items[:] = [item for item in items if item not in full]
        config.hook.pytest_deselected(items=full)
