"""Parts of messages, and literals that are read as text."""

from typing import Any

import pytest

from optax_bridge._hyper_params import ALIKE, other_name
from optax_bridge._literals import NO_LITERAL, expression, literal
from optax_bridge._text import brief, describe, did_you_mean, listing, nearest
from optax_bridge.correspondence import ENTRIES


def test_parts_of_messages():
    assert listing(list("abcdefgh")) == "a, b, c, d, e, f, g, h"
    assert listing(list("abcdefghij")) == "a, b, c, d, e, f, g, h and 2 more"
    assert brief(list("ab"), 10) == "['a', 'b']" and brief("abcd", 5) == "'abcd..."
    assert brief(memoryview(bytes(1234))) == "bytes, 1,234 of them"
    assert describe(int) == "the class int" and describe(len) == "the function len"
    assert nearest("ADM", ["sgd", "Adam"]) == "Adam" and nearest("x", ["Adam"]) == ""
    assert did_you_mean("adm", ["Adam"]) == "; is Adam meant?" and did_you_mean("x", []) == ""


def test_a_setting_is_known_by_the_names_that_it_has_elsewhere(recorded: Any):
    synonyms = sorted({name.partition("[")[0] for group in ALIKE for name in group})
    pages = {}
    for entry in ENTRIES.values():
        for names in (
            [hp.legacy for hp in entry.hyper_params],
            [hp.port for hp in entry.hyper_params],
        ):
            own = {name: other_name(name, names) for name in synonyms}
            lines = [f"{name}: {own[name]}" for name in synonyms if own[name] not in ("", name)]
            pages[f"{entry.name}({', '.join(names)})"] = "\n".join(lines)
    recorded("other_names.txt", pages)


def test_literals():
    value = [1, (-2, 3.5), {"a": None}, -0.5]
    assert literal(expression(" [1, (-2, +3.5), {'a': None}, -x] "), {"x": 0.5}) == value
    assert literal(expression("f(1)"), call=lambda node: len(node.args)) == 1
    for text in ("-True", "{**{}}", "f(1)", "x", "1 + 1"):
        with pytest.raises(ValueError, match=NO_LITERAL):
            literal(expression(text))
    with pytest.raises(ValueError, match="column 4"):
        expression("1 +* 2")
