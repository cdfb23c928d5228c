"""Parts of messages, and literals that are read as text."""

import pytest

from optax_bridge._hyper_params import other_name
from optax_bridge._literals import NO_LITERAL, expression, literal
from optax_bridge._text import brief, describe, did_you_mean, listing, nearest


def test_parts_of_messages():
    assert listing(list("abcdefgh")) == "a, b, c, d, e, f, g, h"
    assert listing(list("abcdefghij")) == "a, b, c, d, e, f, g, h and 2 more"
    assert brief(list("ab"), 10) == "['a', 'b']" and brief("abcd", 5) == "'abcd..."
    assert brief(memoryview(bytes(1234))) == "bytes, 1,234 of them"
    assert describe(int) == "the class int" and describe(len) == "the function len"
    assert nearest("ADM", ["sgd", "Adam"]) == "Adam" and nearest("x", ["Adam"]) == ""
    assert did_you_mean("adm", ["Adam"]) == "; is Adam meant?" and did_you_mean("x", []) == ""
    for name, names in {"beta1": ("momentum", "b1"), "decay": ("alpha", "beta")}.items():
        assert other_name(name, names) == names[1]
    assert other_name("betas", ["b1"]) == "b1" and other_name("beta2", ["momentum"]) == ""
    assert other_name("beta2", ["rho", "decay"]) == "decay"


def test_literals():
    value = [1, (-2, 3.5), {"a": None}, -0.5]
    assert literal(expression(" [1, (-2, +3.5), {'a': None}, -x] "), {"x": 0.5}) == value
    assert literal(expression("f(1)"), call=lambda node: len(node.args)) == 1
    for text in ("-True", "{**{}}", "f(1)", "x", "1 + 1"):
        with pytest.raises(ValueError, match=NO_LITERAL):
            literal(expression(text))
    with pytest.raises(ValueError, match="column 4"):
        expression("1 +* 2")
