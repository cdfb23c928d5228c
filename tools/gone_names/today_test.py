"""Whether a name, or a keyword of it, is there today."""

import enum
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tools.gone_names import today


class Colour(enum.Enum):
    RED = 1


@dataclass
class Point:
    x: int


class Plain:
    def __init__(self, x: int, /, *, scale: float = 1.0):
        self.both = x * scale


@pytest.mark.parametrize(
    ("function", "keyword", "expected"),
    [
        (lambda a, *, b=1: a, "a", True),
        (lambda a, *, b=1: a, "b", True),
        (lambda a, *, b=1: a, "c", False),
        (lambda a, /: a, "a", False),
        (lambda **more: more, "anything", True),
        (Plain, "scale", True),
        (Plain, "x", False),
        (Point, "x", True),
        (Colour, "names", None),
        (3, "real", None),
        (dict.fromkeys, "no such", False),
        (vars, "object", None),  # which does not say what it takes
    ],
)
def test_a_keyword_is_taken_or_not_or_that_is_not_known(
    function: Any, keyword: str, expected: bool | None
):
    assert today.takes(function, keyword) is expected


def test_a_module_is_there_or_missing_or_lacks_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "needs_more.py").write_text("import no_such_package_here\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert today.module("json.decoder") is sys.modules["json.decoder"]
    assert today.module("json.no_such_module") is today.MISSING
    assert today.module("no_such_package_here") is today.MISSING
    assert today.module("needs_more") is today.UNKNOWN


def test_a_dotted_name_has_its_value_or_is_missing():
    assert today.value("json.decoder.JSONDecoder.decode") is json.JSONDecoder.decode
    assert today.value("len") is len
    assert today.value("json.decoder.NoSuchName") is today.MISSING
    assert today.value("json.decoder.JSONDecoder.no_such_method") is today.MISSING
    assert today.member(Point, "x") is int  # a field without a default is no attribute
    assert today.member(Point, "y") is today.MISSING
