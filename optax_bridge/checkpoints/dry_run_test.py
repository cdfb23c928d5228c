"""A dry run says where each leaf goes, and that is where a conversion puts it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import serialization

from optax_bridge import TrainState, from_legacy
from optax_bridge.checkpoints import LeftOverWarning, convert_file
from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.checkpoints.testdata.optimizers import OPTIMIZERS
from optax_bridge.checkpoints.to_train_state import convert_tree
from optax_bridge.checkpoints.trees import plain, state_dict
from optax_bridge.metadata.paths import leaves

# Among the recorded files is one with a group of nothing, which says so.
pytestmark = pytest.mark.filterwarnings("ignore:.*none of the . parameters is selected")

FILES = Path(__file__).parent / "testdata"


def assert_moved(done: Any) -> None:
    """What the plan says is what was done; the rest is counted, or stays as it was."""
    source = dict(leaves(plain(done.read.tree)))
    result = dict(leaves(plain(state_dict(done.tree))))
    for move in done.moves:
        expected, actual = np.asarray(source[move.source]), np.asarray(result[move.target])
        expected = expected[0] if expected.ndim > actual.ndim else expected  # one of its copies
        assert (str(expected.dtype), str(actual.dtype)) == (move.cast or (actual.dtype,) * 2)
        expected = -expected if move.facts()["negated"] else expected
        np.testing.assert_array_equal(expected.astype(actual.dtype), actual, str(move))
    targets = [move.target for move in done.moves]
    assert len(targets) == len(set(targets))
    remaining = {path: leaf for path, leaf in result.items() if path not in targets}
    moved = {id(leaf) for leaf in source.values()}
    unsaid = [path for path, leaf in remaining.items() if id(leaf) not in moved and np.ndim(leaf)]
    assert unsaid == []
    sources = {move.source for move in done.moves}
    assert not sources & {*done.dropped()}
    placeholders = ("m", "v", "v_row", "v_col")  # zeros, where Adafactor keeps nothing
    assert [path for path in done.dropped() if path[-1] not in placeholders] == []


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("recipe", ["exact", "auto"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_dry_run_says_where_each_leaf_goes(name: str, recipe: Any, tmp_path: Path) -> None:
    path, definition = FILES / f"{name}.msgpack", parse_definition(OPTIMIZERS[name])
    done = convert_file(path, tmp_path / "new", definition, recipe=recipe, dry_run=True)
    assert_moved(done)
    assert not (tmp_path / "new").exists()
    if name != "bare_array" and not isinstance(done.tree, list):
        state = convert_tree(done.read.tree, definition, recipe=recipe).state
        template = TrainState.create(apply_fn=None, params=state.params, tx=state.tx)
        fitted = convert_file(path, tmp_path / "new", like=template, dry_run=True)
        assert_moved(fitted)
    convert_file(path, tmp_path / "new", definition, recipe=recipe, file_format="msgpack")
    back = convert_file(
        tmp_path / "new", tmp_path / "old", definition, to_legacy=True, dry_run=True
    )
    assert_moved(back)


def test_what_a_template_has_no_place_for_is_listed_as_dropped(tmp_path: Path) -> None:
    old = serialization.msgpack_restore((FILES / "adam.msgpack").read_bytes())
    data = serialization.msgpack_serialize({"optimizer": old, "note": np.ones(2), "step": 7})
    (tmp_path / "old").write_bytes(data)
    tx = from_legacy(parse_definition(OPTIMIZERS["adam"]))
    template = {"optimizer": TrainState.create(apply_fn=None, params=old["target"], tx=tx)}
    with pytest.warns(LeftOverWarning, match="note"):
        done = convert_file(tmp_path / "old", tmp_path / "new", like=template, dry_run=True)
    assert done.dropped() == [("note",), ("step",)]
