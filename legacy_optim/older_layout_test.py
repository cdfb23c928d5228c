"""States of groups as releases before the last laid them out; what is refused: `errors_test.py`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization

import legacy_optim as optim
from legacy_optim.older_layout import grouped_states, merge_groups

PARAMS = {"a": {"k": jnp.ones((2, 3)), "b": jnp.ones(3)}, "c": jnp.ones(2)}
KERNELS = optim.ModelParamTraversal(lambda path, _: path.endswith("k"))
REST = optim.ModelParamTraversal(lambda path, _: path.endswith(("b", "c")))


def grouped() -> tuple[optim.Optimizer, dict[str, Any]]:
    """An optimizer after a step, and its state dict as flax up to 0.3.2 wrote it."""
    definition = optim.MultiOptimizer((KERNELS, optim.Adam(0.1)), (REST, optim.Momentum(0.1)))
    optimizer = definition.create(PARAMS).apply_gradient(PARAMS)
    saved: Any = serialization.to_state_dict(optimizer)
    states, step = saved["state"]["param_states"], saved["state"]["step"]
    groups = {
        "0": {"step": step, "param_states": {"0": states["a"]["k"]}},
        "1": {"step": step, "param_states": {"0": states["a"]["b"], "1": states["c"]}},
    }
    return optimizer, {"target": saved["target"], "state": groups}


def test_a_state_for_each_group_is_read() -> None:
    optimizer, old = grouped()
    restored = serialization.from_state_dict(optimizer.optimizer_def.create(PARAMS), old)
    assert jax.tree.structure(restored) == jax.tree.structure(optimizer)
    jax.tree.map(np.testing.assert_array_equal, restored, optimizer)
    many = {str(number): {"step": number, "param_states": {}} for number in range(11)}
    assert grouped_states(many) == [*many.values()]  # 10 is behind 9
    leaves = {str(number): number for number in range(12)}
    target = {f"{number:02}": 0.0 for number in leaves.values()}
    merged = merge_groups([{"step": 3, "param_states": leaves}], [[*range(12)]], target)
    assert merged == {"step": 3, "param_states": dict(zip(target, range(12), strict=True))}
    for other in ({"0": {"step": 1}}, {"1": many["1"]}, {"0": 1}, {}, []):
        assert grouped_states(other) is None
