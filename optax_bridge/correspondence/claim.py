# pyright: strict
"""Claims about recipes: how close one is to the legacy optimizer, and in which dtypes.

The suite's measurements are in `seen.json`, which `python -m tools.record_seen` writes; a
test holds the suite to it.
"""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources

FILE = "seen.json"

# Another machine's compiler rounds elsewhere: a distance may be so many times the one in the file.
MARGIN = 2.0


@functools.cache
def measurements() -> Mapping[str, float]:
    """Key of a claim -> the largest distance in the suite's runs of 100 steps, in ULP."""
    file = resources.files("optax_bridge.correspondence").joinpath(FILE)
    return json.loads(file.read_text("utf-8"))


class Verdict(enum.Enum):
    """The relation between two trajectories."""

    IDENTICAL = "identical"
    ROUNDING = "rounding only"
    DIFFERENT = "different"


# Dtypes in which every claim holds: they round finely.
FULL_PRECISION = frozenset({"float32", "float64"})
HALF_PRECISION = ("bfloat16", "float16")
# The parameters for which `optax-bridge prove` proves the claims, and all else that it covers.
PROVED_SHAPES = {"bias": (3,), "kernel": (4, 3), "scalar": ()}
PROVED_FOR = (
    "all parameters, gradients and states, any number of steps, leaves of shapes "
    f"{', '.join(map(str, PROVED_SHAPES.values()))}"
)

# The largest distance in 100 steps, in ULP of the dtype, that still counts as rounding in half
# precision: one ULP is 0.8 % of a tensor's scale in bfloat16.
HALF_BOUND = 1.0


@dataclass(frozen=True)
class Evidence:
    """The status of a claim in one dtype, and the method that established it."""

    holds: bool
    how: str
    over_reals: bool = True


def by_proof() -> Evidence:
    """Holds in this dtype, for all inputs: `optax-bridge prove` shows it."""
    return Evidence(True, "proved")


def by_measurement(ulp: float) -> Evidence:
    """The distance after 100 steps; the claim holds where that is rounding alone."""
    return Evidence(ulp <= HALF_BOUND, f"measured {ulp:g} ULP")


def differs(why: str, *, over_reals: bool = True) -> Evidence:
    """The two differ by more than rounding alone makes of numbers in float32."""
    return Evidence(False, why, over_reals)


NOT_MEASURED = differs("not measured")


def _in_both(evidence: Evidence) -> dict[str, Evidence]:
    return dict.fromkeys(HALF_PRECISION, evidence)


@dataclass(frozen=True)
class Claim:
    """A claim about a recipe, to which the suite holds it.

    Attributes:
      verdict: identical, rounding only, or different.
      ulp: for rounding only, the largest distance from the legacy trajectory, parameters and state,
        that a run of 100 steps may reach, in units in the last place at the tensor's largest
        magnitude so far, in float32. A longer run may drift in proportion.
      why: where the rounding or the difference comes from.
      key: of the suite's measurement in `seen.json`.
      evidence: for bfloat16 and float16 each, whether the claim holds there too, where
        hyper-parameters are plain numbers. In float32 it always does, and in float64 unless this
        says other.
    """

    verdict: Verdict
    ulp: float | None = None
    why: str = ""
    key: str = field(default="", compare=False)
    evidence: Mapping[str, Evidence] = field(
        default_factory=lambda: _in_both(NOT_MEASURED), compare=False
    )

    def __post_init__(self):
        if (self.verdict is Verdict.ROUNDING) != (self.ulp is not None):
            raise ValueError("a bound in ULP belongs to 'rounding only', and it must have one")

    @property
    def dtypes(self) -> frozenset[str]:
        """The dtypes of parameters in which it is identical or rounding only."""
        if self.verdict is Verdict.DIFFERENT:
            return frozenset()
        refuted = {dtype for dtype, evidence in self.evidence.items() if not evidence.holds}
        return FULL_PRECISION.union(self.evidence) - refuted

    @property
    def measured_ulp(self) -> float | None:
        """The largest distance that the suite has measured, in ULP, or None."""
        return measurements().get(self.key)

    @property
    def reason(self) -> str:
        """`why`, and for rounding the measured distance."""
        ulp = self.measured_ulp
        measured = "" if ulp is None else f"{ulp:g} ULP measured"
        return "; ".join(filter(None, (self.why, measured)))

    @property
    def relation(self) -> str:
        """The relation that `optax-bridge prove` proves, for all inputs and numbers of steps."""
        return {
            Verdict.IDENTICAL: "identical",
            Verdict.ROUNDING: "equal over the reals",
            Verdict.DIFFERENT: "different",
        }[self.verdict]


def identical(why: str = "") -> Claim:
    """Claims that every bit is the same, in every dtype."""
    return Claim(Verdict.IDENTICAL, why=why, evidence=_in_both(by_proof()))


EXACT = identical("the legacy operations in the legacy order")


def rounding(
    ulp: float,
    why: str,
    *,
    bfloat16: Evidence = NOT_MEASURED,
    float16: Evidence = NOT_MEASURED,
    **others: Evidence,
) -> Claim:
    """Claims that only rounding differs, by `ulp` at most."""
    evidence = {"bfloat16": bfloat16, "float16": float16, **others}
    return Claim(Verdict.ROUNDING, ulp=ulp, why=why, evidence=evidence)


def different(why: str, **others: Evidence) -> Claim:
    """Claims that it is another optimizer, in the dtypes at hand unless `others` says other."""
    return Claim(Verdict.DIFFERENT, why=why, evidence=_in_both(NOT_MEASURED) | others)
