# pyright: strict
"""The console of the commands: text from files cannot steer the terminal."""

import unicodedata
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment


class Terminal(Console):
    """A console for untrusted text: control characters are shown, not obeyed."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Returns the segments to print; only Rich's own may control the terminal."""
        for part in super().render(renderable, options):
            is_plain = part.control is not None or part.text.isprintable()
            yield part if is_plain else Segment(printable(part.text), part.style)


def plain_terminal(*, stderr: bool = False) -> Terminal:
    """A terminal that prints text unchanged, in lines of any length."""
    return Terminal(stderr=stderr, soft_wrap=True, markup=False, highlight=False, emoji=False)


def printable(text: str) -> str:
    r"""A text with control characters as escapes; ends of lines and tabs stay."""
    return "".join(
        char if _is_harmless(char) else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def _is_harmless(char: str) -> bool:
    return char.isprintable() or char in "\n\t" or unicodedata.category(char) == "Zs"
