from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from legacy_optim import recurrent

# The squares of what flax 0.5.3 gave with jax 0.4.13.
THEN = {
    "LSTMCell": 1.3381706476211548,
    "OptimizedLSTMCell": 0.33513981103897095,
    "GRUCell": 0.7695266008377075,
}


class Net(nn.Module):
    """Cells as programs had them: one scanned over time, one called by itself."""

    kind: str

    @nn.compact
    def __call__(self, x: Any) -> Any:
        cell: Any = getattr(recurrent, self.kind)
        scanned = nn.scan(
            cell, variable_broadcast="params", split_rngs={"params": False}, in_axes=1, out_axes=1
        )
        carry = cell.initialize_carry(jax.random.PRNGKey(0), (x.shape[0],), 5)
        _, y = scanned()(carry, x)
        carry = cell.initialize_carry(jax.random.PRNGKey(0), (x.shape[0],), 4)
        _, z = cell(name="own")(carry, x[:, 0])
        return nn.Dense(1)(y).sum() + z.sum()


@pytest.mark.parametrize("kind", THEN)
def test_cells_without_features_are_those_of_then(kind: str):
    x = jnp.asarray(np.random.RandomState(0).randn(2, 3, 4), jnp.float32)
    net: Any = Net(kind)
    with jax.threefry_partitionable(False):
        y, variables = jax.jit(net.init_with_output)(jax.random.PRNGKey(2), x)
    assert sorted(variables["params"]) == ["Dense_0", f"Scan{kind}_0", "own"]
    # Sums of matrix products are rounded in another order than then.
    np.testing.assert_allclose(jnp.square(y), THEN[kind], rtol=1e-5)


@pytest.mark.parametrize("kind", THEN)
def test_todays_form_is_understood(kind: str):
    x = jnp.ones((2, 3))
    own: Any = getattr(recurrent, kind)(features=4, parent=None)
    today: Any = getattr(nn, kind)(features=4, parent=None)
    key = jax.random.PRNGKey(0)
    carry = own.initialize_carry(key, x.shape)
    variables = today.init(key, carry, x)
    jax.tree.map(
        np.testing.assert_array_equal,
        (carry, own.apply(variables, carry, x)),
        (today.initialize_carry(key, x.shape), today.apply(variables, carry, x)),
    )
    normal = nn.initializers.normal(1.0)
    random: Any = getattr(nn, kind)(features=4, parent=None, carry_init=normal)
    jax.tree.map(
        np.testing.assert_array_equal,
        (
            own.initialize_carry(key, (2,), 4),
            own.initialize_carry(key, batch_dims=(2,), size=4, init_fn=normal),
        ),
        (carry, random.initialize_carry(key, x.shape)),
    )
