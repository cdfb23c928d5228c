"""What decides bits here: versions, devices and flags."""

import os
from typing import Any

import jax

from optax_bridge.installed import versions

_FLAGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion")


PLATFORMS = ("cpu", "gpu", "tpu")


def check_platform(platform: str | None) -> None:
    """Raises a ValueError unless it is the name of a platform, or None for the default one."""
    if platform not in (None, *PLATFORMS):
        raise ValueError(f"--platform {platform}: expected one of {', '.join(PLATFORMS)}")


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
