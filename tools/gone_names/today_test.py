"""Whether a name, or a keyword of it, is there today."""

import enum
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.gone_names import today

Colour = enum.Enum("Colour", ["RED"])


@dataclass
class Point:
    x: int


class Plain:
    def __init__(self, x: int, /, *, scale: float = 1.0):
        self.both = x * scale


def test_a_keyword_is_taken_or_not_or_that_is_not_known():
    for function, answers in (
        (lambda a, *, b=1: a, {"a": True, "b": True, "c": False}),
        (lambda a, /: a, {"a": False}),
        (lambda **more: more, {"anything": True}),
        (Plain, {"scale": True, "x": False}),
        (Point, {"x": True}),
        (Colour, {"names": None}),
        (3, {"real": None}),
        (dict.fromkeys, {"no such": False}),
        (vars, {"object": None}),  # which does not say what it takes
    ):
        assert {keyword: today.takes(function, keyword) for keyword in answers} == answers


def test_a_name_has_its_value_or_is_missing_or_lacks_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "needs_more.py").write_text("import no_such_package_here\n")
    monkeypatch.syspath_prepend(tmp_path)
    for look_up, name, expected in (
        (today.module, "json.decoder", sys.modules["json.decoder"]),
        (today.module, "json.no_such_module", today.MISSING),
        (today.module, "no_such_package_here", today.MISSING),
        (today.module, "needs_more", today.UNKNOWN),
        (today.value, "json.decoder.JSONDecoder.decode", json.JSONDecoder.decode),
        (today.value, "len", len),
        (today.value, "json.decoder.NoSuchName", today.MISSING),
        (today.value, "json.decoder.JSONDecoder.no_such_method", today.MISSING),
    ):
        assert look_up(name) is expected, name
    assert today.member(Point, "x") is int  # a field without a default is no attribute
    assert today.member(Point, "y") is today.MISSING
