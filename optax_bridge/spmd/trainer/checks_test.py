"""What the trainer is asked for is checked before it runs."""

from typing import Any

import pytest

from optax_bridge.spmd.trainer.checks import forced_evalers
from optax_bridge.spmd.trainer.loop import _is_of_storage


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, set()),
        (False, set()),
        (True, {"a", "b"}),
        (set(), set()),
        (["a"], {"a"}),
        (("b", "a"), {"a", "b"}),
        (frozenset({"b"}), {"b"}),
    ],
    ids=["None", "False", "True", "no name", "list", "tuple", "frozenset"],  # sets have no order
)
def test_evalers_are_all_none_or_those_that_are_named(wanted: Any, expected: set[str]):
    assert forced_evalers(wanted, ["a", "b"]) == expected


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("a", "expected True or a set of names, found str: 'a'"),
        (1, "expected True or a set of names, found int: 1"),
        (["b", "d", "c"], r"no evaler \['c', 'd'\]; there are \['a', 'b'\]"),
    ],
    ids=str,
)
def test_what_names_no_evaler_is_refused(wanted: Any, message: str):
    with pytest.raises(ValueError, match=f"^return_evaler_summaries: {message}$"):
        forced_evalers(wanted, ["a", "b"])


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (OSError(28, "No space left on device"), True),
        (OSError("no number"), False),
        (ValueError("x [os_error_code='28']"), True),
        (ValueError("OS error 28"), True),
        (ValueError("RESOURCE_EXHAUSTED: full"), True),
        (ValueError("other shapes"), False),
    ],
    ids=repr,
)
def test_which_errors_are_of_writing_files(error: Exception, is_one: bool):
    assert _is_of_storage(error) == is_one
