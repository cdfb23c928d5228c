"""What is printed of a file cannot steer the terminal."""

import io

import pytest
from rich.text import Text

from optax_bridge.cli.terminal import Terminal, printable

HOSTILE = {
    "colour": ("\x1b[31ma", r"\x1b[31ma"),
    "title": ("\x1b]0;a\x07", r"\x1b]0;a\x07"),
    "one-byte-escape": ("\x9b31m", r"\x9b31m"),
    "direction": ("\u202egnp", r"\u202egnp"),
    "half-of-a-pair": ("\udcff", r"\udcff"),
    "return": ("a\rb", r"a\rb"),
    "harmless": ("\ta\u3000Å 😀", "\ta\u3000Å 😀"),
}


@pytest.mark.parametrize("case", HOSTILE, ids=str)
def test_control_characters_are_shown(case: str):
    text, expected = HOSTILE[case]
    assert printable(text) == expected


def test_only_rich_controls_the_terminal():
    seen = io.StringIO()
    terminal = Terminal(file=seen, force_terminal=True, color_system="standard", soft_wrap=True)
    terminal.print(Text("a\x1b[2Jb", style="green"))
    assert seen.getvalue() == "\x1b[32ma\\x1b[2Jb\x1b[0m\n"
