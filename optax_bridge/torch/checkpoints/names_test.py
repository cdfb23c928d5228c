"""A names file says where every tensor goes, once, and how it lies there; or is refused by name."""

import numpy as np
import pytest

from optax_bridge.checkpoints import CheckpointError
from optax_bridge.recorded_test import refused
from optax_bridge.torch.checkpoints.names import read_names
from optax_bridge.torch.checkpoints.rearrangement import Rearrangement

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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (WHOLE, "found none for a.w, b.w"),
        (MORE + '"n.count" = "params/x"', "no line for what is dropped, found n.count"),
        (MORE.replace("params/b", "params/a"), "each path once, found params/a"),
        (MORE + '"fc.wieght" = "params/w"', "is fc.weight meant"),
        (WHOLE + '"a.w" = "params//w"', "names.toml of this form"),
        (WHOLE + '"a.w" = "w"', "names.toml of this form"),
        (WHOLE + '"a.w" = { to = "params/w", as = "o -> p" }', "both sides"),
        (WHOLE + '"a.w" = { to = "params/w", h = 2 }', "names.toml of this form"),
        (WHOLE + '"a.w" = { to = "params/w", as = "(o p) -> o p", o = 0 }', "names.toml of this"),
        (MORE.replace('"params/b"', '{ to = "params/b", unsure = "?" }'), "decided, found b.w"),
        ('order = ["fc.bias"]\nunsure_order = "?"\n[names]', "a person has decided"),
        ("dorp = []\n[names]", "is drop meant"),
        ("drop = 3\n[names]", "drop"),
        ("[names", "TOML"),
    ],
)
def test_what_it_does_not_say_is_refused_by_name(tmp_path, text, expected):
    with refused(CheckpointError, expected):
        rules(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "sizes", "shape", "expected"),
    [
        ("o i -> i p", {}, (), "both sides"),
        ("o o -> o o", {}, (), "each once"),
        ("o i -> i o", {"h": 2}, (), "not of h"),
        ("O i -> i O", {}, (), "lower case"),
        ("o i -> i o", {}, (2,), "2 axes"),
        ("(h d) i -> i h d", {}, (4, 3), "size of h or d"),
        ("(h d) i -> i h d", {"h": 3}, (4, 3), "h d in 4"),
        ("(h d) i -> i h d", {"h": 2, "d": 1}, (4, 3), "h d in 4"),
    ],
)
def test_no_rearrangement_and_an_array_without_its_axes_are_refused(text, sizes, shape, expected):
    with refused(ValueError, expected):
        Rearrangement.parse(text, sizes)(np.zeros(shape))
