"""Eight host devices for the sharded cases, unless the caller chose or JAX is already there."""

import os
import sys

_FLAG = "--xla_force_host_platform_device_count"
if "jax" not in sys.modules and _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=8".strip()
