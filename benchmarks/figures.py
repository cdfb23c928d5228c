"""A benchmark's results: ratios of two things measured in turn, with their spread."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.timing import Spread, in_turn, interval


@dataclass(frozen=True)
class Figure:
    """One ratio.

    Attributes:
      section: name of the measurement.
      subject: the thing measured, e.g. `adam, 16 x 1024x1024, float32`.
      what: the two sides, e.g. `exact / legacy`.
      ratio: of the measurements of the same turn.
      base: the median of the second side.
      unit: of `base`.
      bar: the largest ratio that is promised; None where nothing is.
      note: a remark.
    """

    section: str
    subject: str
    what: str
    ratio: Spread
    base: float
    unit: str = "ms"
    bar: float | None = None
    note: str = ""

    @property
    def is_within_bar(self) -> bool:
        """True unless the whole interval is above the bar."""
        return self.bar is None or self.ratio.low <= self.bar


@dataclass(frozen=True)
class NotRun:
    """A thing that was not measured, and the reason."""

    section: str
    subject: str
    reason: str


Outcome = Figure | NotRun
# A measurement: quick or not -> outcomes, each as soon as it has been taken.
Measurement = Callable[[bool], Iterator[Outcome]]


def exactly(ratio: float) -> Spread:
    """Returns a ratio that was counted, or measured once, as a spread without width."""
    return Spread(ratio, ratio, ratio)


def ratios(
    section: str,
    subject: str,
    candidates: Mapping[str, Callable[[], float]],
    pairs: Sequence[tuple[str, str, float | None]],
    *,
    repeats: int,
    seconds: float = 5.0,
    warm_up: int = 2,
) -> Iterator[Figure]:
    """Lets candidates take turns and yields their ratios, taken turn by turn.

    Args:
      section: of the figures.
      subject: of the figures.
      candidates: name -> function that does the work once and returns the seconds it took.
      pairs: the ratios wanted, each with its bar; those that name no candidate are left out.
      repeats: turns that count, at most.
      seconds: after which no turn is begun, once there are five.
      warm_up: turns before those that count.
    """
    times = in_turn(candidates, repeats, warm_up, seconds)
    for one, other, bar in pairs:
        if one in times and other in times:
            each = [a / b for a, b in zip(times[one], times[other], strict=True)]
            base = 1e3 * statistics.median(times[other])
            yield Figure(section, subject, f"{one} / {other}", interval(each), base, "ms", bar)
