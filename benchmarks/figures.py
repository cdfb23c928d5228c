"""What a benchmark gives: ratios of two things measured in turn, with their spread."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.timing import Spread, in_turn, interval, spread


@dataclass(frozen=True)
class Figure:
    """One ratio.

    Attributes:
      section: name of the measurement.
      subject: what was measured, e.g. `adam, 16 x 1024x1024, float32`.
      what: the two things, e.g. `exact / legacy`.
      ratio: of the measurements of the same turn.
      base: the median of the second thing.
      unit: of `base`.
      bar: what the ratio should not exceed; None where nothing is promised.
      note: a remark.
      work: what the two do, counted in their compiled programs; `benchmarks.programs`.
      same_work: whether that is the same, so that the true ratio is 1 whatever was timed.
    """

    section: str
    subject: str
    what: str
    ratio: Spread
    base: float
    unit: str = "ms"
    bar: float | None = None
    note: str = ""
    work: str = ""
    same_work: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """What the same figure of another run has as well."""
        return self.section, self.subject, self.what

    @property
    def kept(self) -> bool:
        """Whether the bar is kept: the lower end decides, unless the work is the same."""
        if self.bar is None or (self.same_work and self.bar >= 1):
            return True
        return self.ratio.low <= self.bar


@dataclass(frozen=True)
class NotRun:
    """What was not measured, and why."""

    section: str
    subject: str
    why: str


Outcome = Figure | NotRun
# A measurement: quick or not -> outcomes, each as soon as it is there.
Measurement = Callable[[bool], Iterator[Outcome]]


def ratios(
    section: str,
    subject: str,
    candidates: dict[str, Callable[[], float]],
    pairs: Sequence[tuple[str, str, float | None]],
    *,
    repeats: int,
    seconds: float = 5.0,
    warm_up: int = 2,
    note: str = "",
    unit: str = "ms",
) -> Iterator[Figure]:
    """Lets candidates take turns and gives their ratios, taken turn by turn.

    Args:
      section: of the figures.
      subject: of the figures.
      candidates: name -> function that does the work once and returns what it took, in seconds.
      pairs: which ratios are wanted, each with its bar; those that name no candidate are left out.
      repeats: turns that count, at most.
      seconds: after which no turn is begun, once there are five.
      warm_up: turns before those that count.
      note: of the figures.
      unit: `ms`, or `s` for what takes long.
    """
    taken = in_turn(candidates, repeats, warm_up, seconds)
    scale = 1e3 if unit == "ms" else 1.0
    for one, other, bar in pairs:
        if one in taken and other in taken:
            each = [a / b for a, b in zip(taken[one], taken[other], strict=True)]
            base = scale * spread(taken[other]).median
            yield Figure(
                section, subject, f"{one} / {other}", interval(each), base, unit, bar, note
            )


def as_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Outcomes as plain data for JSON."""
    return [asdict(outcome) for outcome in outcomes]


def from_rows(rows: Sequence[dict[str, Any]]) -> list[Outcome]:
    """Outcomes read back from JSON.

    Raises:
      KeyError, TypeError: they are no such rows.
    """
    return [
        NotRun(**row) if "why" in row else Figure(**{**row, "ratio": Spread(**row["ratio"])})
        for row in rows
    ]
