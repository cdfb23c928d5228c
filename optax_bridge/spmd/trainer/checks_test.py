"""What the trainer is asked for is checked before it runs."""

from typing import Any

import pytest

from optax_bridge.spmd.trainer.checks import forced_evalers
from optax_bridge.spmd.trainer.loop import _is_of_storage


def test_evalers_are_all_none_or_those_that_are_named():
    expected: Any = [(None, set()), (False, set()), (True, {"a", "b"}), (["a"], {"a"})]
    for wanted, names in [*expected, (("b", "a"), {"a", "b"}), (frozenset({"b"}), {"b"})]:
        assert forced_evalers(wanted, ["a", "b"]) == names


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("a", "expected True or a set of names, found str: 'a'"),
        (["b", "d", "c"], r"no evaler \['c', 'd'\]; there are \['a', 'b'\]"),
    ],
    ids=str,
)
def test_what_names_no_evaler_is_refused(wanted: Any, message: str):
    with pytest.raises(ValueError, match=f"^return_evaler_summaries: {message}$"):
        forced_evalers(wanted, ["a", "b"])


def test_which_errors_are_of_writing_files():
    full = ["x [os_error_code='28']", "OS error 28", "RESOURCE_EXHAUSTED: full"]
    assert all(map(_is_of_storage, [OSError(28, "No space left"), *map(ValueError, full)]))
    assert not any(map(_is_of_storage, [OSError("no number"), ValueError("other shapes")]))
