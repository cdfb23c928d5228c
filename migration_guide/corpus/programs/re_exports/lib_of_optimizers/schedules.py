import jax.numpy as jnp


def warmup(base, steps):
    return lambda step: base * jnp.minimum(1.0, (step + 1) / steps)
