"""A names file says where every tensor goes, once, or is refused by name."""

import numpy as np
import pytest

from optax_bridge.checkpoints import CheckpointError
from optax_bridge.torch.checkpoints.names import read_names

NAMES = ["fc.weight", "fc.bias", "layers.2.w", "layers.10.w", "n.count"]
WHOLE = """
drop = ["*.count"]
[names]
"fc.weight" = { to = "params/fc/kernel", as = "o i -> i o" }
"fc.bias" = "params/fc/bias"
"""


def rules(tmp_path, text, names=NAMES):
    file = tmp_path / "names.toml"
    file.write_text(text)
    return read_names(file).rules(names)


def test_a_star_on_both_sides_is_one_number_and_on_the_left_alone_stacks(tmp_path):
    each = rules(tmp_path, WHOLE + '"layers.*.w" = "params/layers_*/w"')
    assert [rule.flax for rule in each[2:]] == [
        (("params", "layers_2", "w"),),
        (("params", "layers_10", "w"),),
    ]
    stacked = rules(tmp_path, WHOLE + '"layers.*.w" = { to = "params/w", as = "n o i -> n i o" }')[
        2
    ]
    assert stacked.torch == ("layers.2.w", "layers.10.w")  # by number
    arrays = [np.ones((2, 3)), np.zeros((2, 3))]
    ((path, array),) = stacked.to_flax(arrays).items()
    assert (path, array.shape) == (("params", "w"), (2, 3, 2))
    np.testing.assert_array_equal(stacked.to_torch([array])["layers.10.w"], arrays[1])


def test_a_list_takes_an_array_apart(tmp_path):
    text = '[names]\n"qkv" = { to = ["params/q", "params/k"], as = "(n d) i -> n i d" }'
    (rule,) = rules(tmp_path, text, ["qkv"])
    array = np.arange(12.0).reshape(4, 3)
    parts = rule.to_flax([array])
    np.testing.assert_array_equal(parts["params", "k"], array[2:].T)
    np.testing.assert_array_equal(rule.to_torch([*parts.values()])["qkv"], array)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (WHOLE, "none for layers.2.w, layers.10.w"),
        (WHOLE + '"layers.*.w" = "params/w_*"\n"layers.2.w" = "params/x"', "each tensor once"),
        (WHOLE + '"layers.2.w" = "params/w"\n"layers.10.w" = "params/w"', "each path once"),
        (WHOLE + '"fc.wieght" = "params/w"', "is fc.weight meant"),
        (WHOLE + '"layers.2.w" = "w"', "names.toml of this form"),
        (WHOLE + '"layers.2.w" = { to = "params/w", as = "o -> p" }', "both sides"),
        (WHOLE + '"layers.2.w" = { to = "params/w", h = "2" }', "names.toml of this form"),
        (WHOLE + '"layers.2.w" = { to = "params/w", unsure = "?" }', "drafts: layers.2.w"),
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
