"""The helper that quotes messages fails where a message is another one."""

import pytest

from migration_guide.messages import raises


def test_it_prints_what_is_raised(capsys):
    raises("invalid literal for int()", lambda: int("x"))
    assert capsys.readouterr().out.startswith("ValueError: invalid literal for int()")
    raises("not said any more", lambda: int("x"), before="invalid literal")


@pytest.mark.parametrize("function", [lambda: int("x"), lambda: int("1")], ids=["other", "none"])
def test_it_fails_where_that_is_not_said(function):
    with pytest.raises(AssertionError, match="expected"):
        raises("no such message", function)
