"""What is known of a side by its name."""

import re

import jax.numpy as jnp
import pytest

from equivalence_tests.pair.known import known_recipe
from equivalence_tests.pair.named import named_pair

KNOWN = {
    "a call, and why not public Optax": (
        ("LAMB(0.1)", ""),
        jnp.float32,
        r"LAMB\(0.1\) in Optax is optax_bridge.lamb\(learning_rate=0.1\): identical. LAMB: .* zero",
    ),
    "a name with arguments": (
        ("legacy_optim:RMSProp", "0.1"),
        jnp.float32,
        r"optax.rmsprop\(learning_rate=0.1, .*eps_in_sqrt=False\): rounding only$",
    ),
    "in half precision": (("RMSProp(0.1)", ""), jnp.bfloat16, r"is optax_bridge.rmsprop.*bfloat16"),
    "of another library": (
        ("torch.optim.Adam(lr=0.1)", ""),
        jnp.float32,
        r"Adam\(lr=0.1\) in Optax is optax.adam",
    ),
    "groups": (
        ('MultiOptimizer(("*/b", Adam(0.1)))', ""),
        jnp.float32,
        r"is optax_bridge.multi_optimizer\(\('\*/b', optax.adam\(",
    ),
    "neither of them": (("optax.adam(0.1)", ""), jnp.float32, "^$"),
}


@pytest.mark.parametrize("case", KNOWN)
def test_what_a_side_is_in_optax(case: str):
    name, dtype, text = KNOWN[case]
    sides = named_pair(("optax.sgd(0.1)", ""), name)
    known = known_recipe(sides, {"w": jnp.ones(3, dtype)})
    assert re.search(text, known), known
