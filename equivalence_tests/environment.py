"""What decides bits here: versions, devices and flags."""

import os
import platform as python_platform
from importlib import metadata
from typing import Any

import jax

# Packages whose version can change bits, or the meaning of a claim.
DECIDE_BITS = ("optax-bridge", "jax", "jaxlib", "flax", "optax", "numpy")

_FLAGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion")


PLATFORMS = ("cpu", "gpu", "tpu")


def check_platform(platform: str | None) -> None:
    """Raises a ValueError unless it is the name of a platform, or None for the default one."""
    if platform not in (None, *PLATFORMS):
        raise ValueError(f"--platform {platform}: expected one of {', '.join(PLATFORMS)}")


def versions() -> dict[str, str]:
    """The versions of everything that decides bits, Python's included."""
    return {
        **{name: metadata.version(name) for name in DECIDE_BITS},
        "python": python_platform.python_version(),
    }


def environment(device: Any) -> dict[str, Any]:
    """Versions, devices and flags, as plain data."""
    return {
        "versions": versions(),
        "device": device.device_kind,
        "platform": device.platform,
        "devices": len(jax.devices(device.platform)),
        "flags": {
            **{name: getattr(jax.config, name) for name in _FLAGS},
            "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        },
    }
