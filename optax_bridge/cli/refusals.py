# pyright: strict
"""Explains why the value of an option is refused: what was expected, and the nearest name.

Typer has values checked by Pydantic, whose own words for it mean nothing to a user.
"""

import re
from typing import Any, cast

import typer

from optax_bridge._text import did_you_mean

_CHOICE = re.compile(r"(?P<value>'.*') is not one of (?P<choices>.*?)\.?", re.DOTALL)


def explain(error: typer.BadParameter) -> None:
    """Rewrites the message of an error: in plain words, with the nearest of the values."""
    message = error.message.removeprefix("Value error, ")
    choice = _CHOICE.fullmatch(message)
    if choice is not None:
        choices = re.findall(r"'([^']*)'", choice["choices"])
        message = message.removesuffix(".") + did_you_mean(choice["value"].strip("'"), choices)
    elif message.startswith("Input should be "):
        expected, _, _ = message.removeprefix("Input should be ").partition(",")
        expected = expected.replace("valid integer", "whole number").replace("valid ", "")
        article = "" if expected.startswith("a ") else "a number "
        message = f"expected {article}{expected}{_input(error)}"
    error.message = message


def _input(error: typer.BadParameter) -> str:
    """Returns "; found VALUE", as Pydantic's error has it, or "" where there is none."""
    errors: Any = getattr(error.__cause__, "errors", None)
    details = cast(list[dict[str, Any]], errors()) if callable(errors) else []
    return f"; found {details[0]['input']!r}" if details else ""
