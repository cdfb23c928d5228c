"""What the suite has measured of each claim that only rounding differs, beside what is claimed.

`python -m tools.record_seen` writes `seen.json`; a test holds the suite to it.
"""

import functools
import json
from collections.abc import Mapping
from importlib import resources

FILE = "seen.json"

# Another machine's compiler rounds elsewhere; what is measured may be so many times what is here.
MARGIN = 2.0


@functools.cache
def recorded() -> Mapping[str, float]:
    """Key of a claim -> the largest distance in the suite's runs of 100 steps, in ULP."""
    file = resources.files("optax_bridge.correspondence").joinpath(FILE)
    return json.loads(file.read_text("utf-8"))
