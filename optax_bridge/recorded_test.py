"""Outcomes that are recorded in `testdata` beside a test, and compared whole.

`RECORD=1 python -m pytest TEST` records them again; read the difference.
"""

import collections
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_NUMBER = re.compile(r"(?<= )-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?= |$)")


def assert_recorded(file: Path, name: str, lines: list[str]) -> None:
    """Compares lines with those of this name in `testdata`, numbers to 64 ULP of float32.

    XLA's releases fuse products and sums each in their own way, and a weighted sum cancels.
    """
    lines = [line.replace("PartitionSpec(", "P(") for line in lines]  # as JAX 0.10 says it
    recorded = json.loads(file.read_text()) if file.exists() else {}
    if os.environ.get("RECORD"):
        recorded[name] = lines
        file.write_text(json.dumps(recorded, indent=1) + "\n")
    expected = recorded[name]
    assert [_NUMBER.sub("#", line) for line in lines] == [_NUMBER.sub("#", x) for x in expected]
    for line, wanted in zip(lines, expected, strict=True):
        numbers, others = ([float(x) for x in _NUMBER.findall(text)] for text in (line, wanted))
        np.testing.assert_allclose(numbers, others, rtol=8e-6, atol=8e-6, err_msg=wanted)


_RAISED: collections.Counter[str] = collections.Counter()  # by test


def refused(error: type[Exception], match: str) -> contextlib.AbstractContextManager[Any]:
    """Like `pytest.raises`; and all that is said is in `testdata/messages.json` of the folder."""
    return _refused(Path(sys._getframe(1).f_code.co_filename).parent, error, match)


@contextlib.contextmanager
def _refused(folder: Path, error: type[Exception], match: str) -> Iterator[Any]:
    with pytest.raises(error, match=match) as caught:
        yield caught
    notes = [
        n for n in getattr(caught.value, "__notes__", ()) if n.startswith(("In ", "It ", "Be"))
    ]
    text = "\n".join([str(caught.value), *notes])
    text = re.sub(r"[^\s'\"]*pytest-of-[^/\s]+/pytest-\d+/(?:popen-gw\d+/)?[\w-]+", "TMP", text)
    text = re.sub(r" \[source locations=.*?\]|(?<=_test\.py, line )\d+", "", text)
    text = re.sub(r" at 0x[0-9a-f]+", "", text.replace(str(Path(__file__).parents[1]), "REPO"))
    test = os.environ["PYTEST_CURRENT_TEST"].partition("::")[2].removesuffix(" (call)")
    _RAISED[test] += 1
    name = f"{test} {_RAISED[test]}"
    assert_recorded(folder / "testdata" / "messages.json", name, text.splitlines())


def test_what_differs_is_an_error(tmp_path, monkeypatch):
    file, lines = tmp_path / "recorded.json", ["w float32[2] 3.5", "the rest"]
    monkeypatch.setenv("RECORD", "1")
    assert_recorded(file, "a", lines)
    monkeypatch.delenv("RECORD")
    assert_recorded(file, "a", ["w float32[2] 3.50001", "the rest"])
    for others in (["w float32[2] 3.501", "the rest"], ["w float32[3] 3.5", "the rest"], lines[:1]):
        with pytest.raises(AssertionError):
            assert_recorded(file, "a", others)
