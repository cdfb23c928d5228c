"""The ways to take steps do what they are called."""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization

from equivalence_tests.sides.side import Side
from equivalence_tests.sides.trajectory import per_device, trajectory


@flax.struct.dataclass
class _Count:
    value: jax.Array


# A state that its bytes do not hold: restored, it is as it was made.
serialization.register_serialization_state(
    _Count, lambda count: {}, lambda count, _: count, override=True
)


def test_a_resumed_run_is_restored_from_bytes():
    side = Side(
        "counting",
        lambda params: _Count(jnp.zeros(())),
        lambda state, grads: _Count(state.value + 1),
        lambda state: state.value,
    )
    grads = (np.zeros((4, 1), np.float32),)
    assert trajectory(side, {}, grads, parts=2).tolist() == [1, 2, 3, 4]
    assert trajectory(side, {}, grads, parts=2, resumed=True).tolist() == [1, 2, 1, 2]


def test_devices_have_gradients_of_their_own_whose_sum_does_not_round():
    parts = np.asarray(per_device(np.ones((2, 3), np.float32), 4))
    assert parts.shape == (2, 4, 3)
    assert parts[0, :, 0].tolist() == [0, 1, 2, 0]
    odd = np.asarray(per_device(np.full((1, 1), 1 + 2.0**-20, np.float32), 4))
    assert odd[0, :, 0].tolist() == [0, 1, 2, 0]
