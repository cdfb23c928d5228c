"""`.npz` files that hold an optimizer under `opt/`, or parameters alone, with bfloat16 as void."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from flax import serialization

from optax_bridge import TrainState
from optax_bridge.checkpoints import read_checkpoint
from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.metadata.paths import leaves

FILES = Path(__file__).parents[1] / "testdata"


@pytest.mark.parametrize("holder", ["", "opt", "optimizer"])
@pytest.mark.parametrize("name", ["adam", "gradient_descent"])
def test_optimizer_under_opt_comes_along(name: str, holder: str, tmp_path: Path) -> None:
    tree = serialization.msgpack_restore((FILES / f"{name}.msgpack").read_bytes())
    named: dict[str, Any] = {
        "/".join(path): leaf for path, leaf in leaves({holder: tree} if holder else tree)
    }
    np.savez(tmp_path / "model.npz", **named)
    definition = parse_definition("Adam(1e-2)" if name == "adam" else "GradientDescent(0.1)")
    state: Any = TrainState.from_legacy_checkpoint(tmp_path / "model.npz", optimizer_def=definition)
    assert int(state.step) == 4
    np.testing.assert_array_equal(state.params["scale"], tree["target"]["scale"])


def test_bfloat16_comes_back_from_void(tmp_path: Path) -> None:
    expected = np.arange(6, dtype=np.float32).astype(ml_dtypes.bfloat16)
    named: dict[str, Any] = {"a/b": expected}
    np.savez(tmp_path / "model.npz", **named)
    found = read_checkpoint(tmp_path / "model.npz").tree["a"]["b"]
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
