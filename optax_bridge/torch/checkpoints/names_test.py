"""A names file says where every tensor goes, once, or is refused by name."""

import numpy as np
import pytest

from optax_bridge.checkpoints import CheckpointError
from optax_bridge.torch.checkpoints.names import read_names

NAMES = ["fc.weight", "fc.bias", "a.w", "b.w", "n.count"]
WHOLE = """
drop = ["*.count"]
[names]
"fc.weight" = { to = "params/fc/kernel", as = "o i -> i o" }
"fc.bias" = "params/fc/bias"
"""
MORE = WHOLE + '"a.w" = "params/a"\n"b.w" = "params/b"\n'


def rules(tmp_path, text, names=NAMES):
    file = tmp_path / "names.toml"
    file.write_text(text)
    return read_names(file).rules(names)


def test_a_list_takes_an_array_apart(tmp_path):
    text = '[names]\n"qkv" = { to = ["params/q", "params/k"], as = "(n d) i -> n i d" }'
    (rule,) = rules(tmp_path, text, ["qkv"])
    array = np.arange(12.0).reshape(4, 3)
    parts = rule.to_flax(array)
    np.testing.assert_array_equal(parts["params", "k"], array[2:].T)
    np.testing.assert_array_equal(rule.to_torch([*parts.values()]), array)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (WHOLE, "no line for, found a.w, b.w"),
        (MORE + '"n.count" = "params/x"', "no line for what is dropped, found n.count"),
        (MORE.replace("params/b", "params/a"), "each path once, found params/a"),
        (MORE + '"fc.wieght" = "params/w"', "is fc.weight meant"),
        (WHOLE + '"a.w" = "w"', "names.toml of this form"),
        (WHOLE + '"a.w" = { to = "params/w", as = "o -> p" }', "both sides"),
        (WHOLE + '"a.w" = { to = "params/w", h = 2 }', "names.toml of this form"),
        (MORE.replace('"params/b"', '{ to = "params/b", unsure = "?" }'), "decided, found b.w"),
        ('order = ["fc.bias"]\nunsure_order = "?"\n[names]', "a person has decided"),
        ("dorp = []\n[names]", "is drop meant"),
        ("drop = 3\n[names]", "drop"),
        ("names = 3", "drop"),
        ("[names", "TOML"),
    ],
)
def test_what_it_does_not_say_is_refused_by_name(tmp_path, text, expected):
    with pytest.raises(CheckpointError, match=expected):
        rules(tmp_path, text)


def test_no_names_file_says_how_to_make_one(tmp_path):
    with pytest.raises(CheckpointError, match="inspect FILE --names"):
        read_names(tmp_path / "nothing.toml")
