"""Whatever text is given for an optimizer: it is read, or refused in words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legacy_optim import deprecation
from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.correspondence.expression import ExpressionError, parse
from tools import expression_fuzz


@settings(max_examples=500, deadline=None, derandomize=True, database=None)
@given(st.binary(max_size=80))
def test_what_looks_like_an_optimizer_is_read_or_refused(data: bytes) -> None:
    assert expression_fuzz.survives_bytes(data) in ("read", "refused")


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.text() | st.text(alphabet="().,=-*[]{}'\"\\ \n\0Adamln1e_#"))
def test_any_text_is_an_optimizer_or_refused(text: str) -> None:
    assert expression_fuzz.survives_expression(text) in ("read", "refused")


def test_nothing_is_said_but_the_error(recwarn: pytest.WarningsRecorder) -> None:
    """Python's parser warns of a number that runs into a word."""
    with pytest.raises(ExpressionError):
        parse("1or 2")
    assert not recwarn.list


def test_what_wrote_a_checkpoint_is_no_use_of_the_old_api(
    recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deprecation, "_said", set())
    parse_definition('MultiOptimizer(("*", Adam(0.1)))')
    assert not recwarn.list
