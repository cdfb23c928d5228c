"""Error messages that the guide quotes: each is raised while its page is made, not typed."""

import os
import re
from collections.abc import Callable
from pathlib import Path

_LONGEST = 700
_FOLDERS = re.compile(r"\(/\S*/site-packages/")


def raises(quoted: str, function: Callable[[], object], *, before: str | None = None) -> None:
    """Prints the error that a function raises, and fails where it does not say what is quoted."""
    try:
        function()
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    else:
        raise AssertionError(f"nothing raised; expected: {quoted}")
    one_line = " ".join(message.split())
    expected = [text for text in (quoted, before) if text is not None]
    assert any(text in one_line for text in expected), f"expected: {expected}\nraised: {one_line}"
    # Where a package or the file lies is the reader's own affair.
    shown = _FOLDERS.sub("(.../", message.replace(f"{Path.cwd()}{os.sep}", ""))
    print(shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]} ...")
