"""The most memory that this process has held."""

import resource
import sys
from pathlib import Path


def peak_bytes() -> int:
    """The peak of the resident memory in bytes.

    `ru_maxrss` counts what the parent held before it started this process, so that on Linux the
    kernel's own mark of this program is read.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text(encoding="utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
