# pyright: strict
"""The values that a hyper-parameter can take, and its names in other libraries.

Only literals are looked at: a variable of the program may be anything.
"""

import math
from dataclasses import dataclass
from typing import Any

from optax_bridge._hyper_params import other_name
from optax_bridge._text import nearest


@dataclass(frozen=True)
class Range:
    """Numbers from `least` on, up to `most` or below `below`; None as well if `or_none`."""

    least: float = -math.inf
    most: float = math.inf
    below: float = math.inf
    or_none: bool = False

    def __contains__(self, number: float) -> bool:
        return self.least <= number <= self.most and number < self.below

    def __str__(self) -> str:
        if self.below < math.inf:
            return f"a number from {self.least:g} to below {self.below:g}"
        if self.most < math.inf:
            return f"a number from {self.least:g} to {self.most:g}"
        return f"a number, {self.least:g} or more" if self.least > -math.inf else "a finite number"


@dataclass(frozen=True)
class OneOf:
    """Some texts, and None."""

    texts: tuple[str, ...]

    def __str__(self) -> str:
        return f"one of {', '.join(map(repr, self.texts))}, or None"


FINITE = Range()
NOT_NEGATIVE = Range(least=0)
# Of a moving average: at 1 it keeps what it began with.
DECAY = Range(least=0, most=1)
# The same where the average is divided by `1 - decay ** t`.
CORRECTED_DECAY = Range(least=0, below=1)


def expectation(default: object, within: Range | OneOf, value: object) -> str:
    """Returns the permitted values of a hyper-parameter, or "" if the value is one of them."""
    if isinstance(within, OneOf):
        return "" if value is None or value in within.texts else str(within)
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "True or False"
    if isinstance(default, tuple):
        return _expected_tuple(default, within, value)  # pyright: ignore[reportUnknownArgumentType]
    if default is not None and not isinstance(default, int | float):
        return ""  # an optimizer, a dtype
    or_none = within.or_none or default is None
    if value is None and or_none:
        return ""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if math.isfinite(number) and number in within:
        return ""
    return f"{within}, or None" if or_none else str(within)


def _expected_tuple(default: tuple[Any, ...], within: Range | OneOf, value: Any) -> str:
    fits = isinstance(value, tuple) and len(value) == len(default)  # pyright: ignore[reportUnknownArgumentType]
    fits = fits and not any(map(expectation, default, [within] * len(default), value))  # pyright: ignore[reportUnknownArgumentType]
    return "" if fits else f"a tuple of {len(default)}, each {within}"


def meant(argument: str, names: dict[str, str]) -> str:
    """Returns the legacy name of a hyper-parameter from another or a misspelled one, or ""."""
    by_port = {port: legacy for legacy, port in names.items()}
    for name in (by_port.get(argument), other_name(argument, names), nearest(argument, names)):
        if name in names:
            return str(name)
    return ""
