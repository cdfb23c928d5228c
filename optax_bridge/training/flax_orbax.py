"""What Flax's `checkpoints` restores through Orbax is compared with what lies on the disk.

Asked for a leaf that a checkpoint has not, Orbax under Flax hands out the template's own, and
leaves out what the template has not; either without a word. By the time a state is asked to take
its leaves, nothing in them shows it: only the call of Flax that is under way knows the checkpoint.
"""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from optax_bridge.checkpoints.fitting import Fit, outlined, plain

_MODULE, _FUNCTION = "flax.training.checkpoints", "restore_checkpoint"


def check_what_flax_restored() -> None:
    """Compares template and checkpoint, if Flax is restoring one through Orbax just now.

    Raises:
      CheckpointError: the checkpoint lacks a leaf, has one more or one of another shape.
    """
    call = _call_of_flax()
    path, target = call.get("ckpt_path"), call.get("target")
    if not call.get("is_orbax") or target is None or call.get("orbax_transforms") is not None:
        return
    if not path or not Path(path).is_dir():  # in a bucket, which Orbax alone reads
        return
    from optax_bridge.checkpoints.formats.orbax.read import read_orbax

    fit = Fit(path)
    fit.tree(outlined(target), plain(read_orbax(Path(path))), (), own=False)
    fit.settle()


def _call_of_flax() -> dict[str, Any]:
    """The local variables of the innermost call of `restore_checkpoint`; none if there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == _FUNCTION and frame.f_globals.get("__name__") == _MODULE:
            return frame.f_locals
        frame = frame.f_back
    return {}
