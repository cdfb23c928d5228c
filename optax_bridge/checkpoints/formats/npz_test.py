"""`.npz` files that hold an optimizer under `opt/`, or parameters alone, with bfloat16 as void."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import serialization

from optax_bridge import TrainState, convert_state
from optax_bridge.checkpoints import CheckpointError, read_checkpoint
from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.checkpoints.testdata.optimizers import OPTIMIZERS
from optax_bridge.metadata.paths import leaves
from optax_bridge.recorded_test import refused

FILES = Path(__file__).parents[1] / "testdata"


@pytest.mark.parametrize("holder", ["", "opt", "optimizer"])
@pytest.mark.parametrize("name", ["adam", "adam_bfloat16", "gradient_descent"])
def test_optimizer_under_opt_comes_along(name: str, holder: str, tmp_path: Path) -> None:
    tree = serialization.msgpack_restore((FILES / f"{name}.msgpack").read_bytes())
    held = {holder: tree} if holder else tree
    named: dict[str, Any] = {"/".join(path): leaf for path, leaf in leaves(held)}
    np.savez(tmp_path / "model.npz", **named)
    state: Any = TrainState.from_legacy_checkpoint(
        tmp_path / "model.npz", optimizer_def=parse_definition(OPTIMIZERS[name])
    )
    assert int(state.step) == 4
    assert state.params["scale"].dtype == tree["target"]["scale"].dtype
    np.testing.assert_array_equal(state.params["scale"], tree["target"]["scale"])
    np.savez(tmp_path / "swapped.npz", w=np.arange(3, dtype=">f4"))
    swapped = read_checkpoint(tmp_path / "swapped.npz").tree["w"]
    assert swapped.dtype.isnative and np.asarray(swapped).tolist() == [0, 1, 2]
    named[f"{holder}/state/param_states/more/v".strip("/")] = np.ones(3)
    np.savez(tmp_path / "more.npz", **named)
    with refused(CheckpointError, r"names of the target.*'more'"):
        convert_state(read_checkpoint(tmp_path / "more.npz").tree)
