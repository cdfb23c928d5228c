"""The versions, devices and flags on which bits depend."""

import os
from typing import Any

import jax

from optax_bridge._text import did_you_mean
from optax_bridge.cli.installed import versions

_FLAGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion")
PLATFORMS = ("cpu", "gpu", "tpu")
_DEVICES = "--xla_force_host_platform_device_count"
_IN_ORDER = "--xla_gpu_deterministic_ops"


def first_device(platform: str | None) -> Any:
    """Returns the first device of a platform, of the default one if None; None if it is missing."""
    if platform not in (None, *PLATFORMS):
        meant = did_you_mean(str(platform), PLATFORMS)
        raise ValueError(f"--platform {platform}: expected one of {', '.join(PLATFORMS)}{meant}")
    try:
        return jax.devices(platform)[0]
    except RuntimeError:
        return None


def xla_flags(devices: int | None = None) -> str:
    """The environment's XLA_FLAGS, with the CPU split into so many devices, if any.

    And with sums in one order on a GPU: otherwise two programs may get different algorithms of
    cuDNN for the gradient of one convolution, and one program's runs differ from each other.
    """
    flags = os.environ.get("XLA_FLAGS", "").split()
    if devices is not None:
        others = [flag for flag in flags if not flag.startswith(_DEVICES)]
        flags = [*others, f"{_DEVICES}={devices}"]
    if not any(flag.startswith(_IN_ORDER) for flag in flags):
        flags.append(f"{_IN_ORDER}=true")
    return " ".join(flags)


def environment(device: Any) -> dict[str, object]:
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
