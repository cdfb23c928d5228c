"""Bounds in ULP for two runs of one optimizer on two platforms."""

# Each entry's own bound is for one platform; another one sums in another order, fuses elsewhere and
# has other powers and roots. Measured over 100 steps, five optimizers and three models, in ULP at
# the tensor's scale, against jax 0.10.2 on a CPU with AVX-512:
#
#                                recorded gradients     its own gradients
#     jax 0.10.2, SSE4.2                         11                    40
#     jax 0.10.2, AVX2                            0                    14
#     jax 0.10.2, 8 CPU devices                   0                     0
#     jax 0.12.0, AVX-512                         8                    19
#
# No GPU and no TPU is among them. What one more rounding can do at most is the bound for recorded
# gradients: a beta2 of 0.999 makes an error of 2^-24 in its power a thousand times as large in the
# bias correction 1 - beta2^t, and half of that comes through the root: 250 ULP of the first step.
# (PyTorch's Adam, whose powers are float64, is 127 ULP from Optax's in float32.) With gradients of
# their own, sides differed by up to 9 times what the same optimizer showed without: a model hands
# the distance on through the next gradient, and 16 times is what it may add.
OPEN_ULP, CLOSED_ULP = 256.0, 16 * 256.0
