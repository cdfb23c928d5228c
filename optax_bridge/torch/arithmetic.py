"""PyTorch's elementwise operations as its kernels for CPUs round them.

What is between two roundings is computed in float64, whose products of float32 numbers are exact,
and rounded by `lax.reduce_precision`, which no compiler removes or fuses: XLA would contract `a *
b + c` where PyTorch does not, and not where PyTorch does. So a step has the same bits eager and
compiled.

Not repeated: PyTorch's square root, which comes from Intel's vector library and is one unit in the
last place off for about 0.7 % of all numbers; numbers below 1.2e-38, which XLA takes for zero; the
loop for a tensor's last elements, up to 63, which rounds products in half precision; and a fused
sum whose product lies half-way between two numbers and whose other term is below its 53 bits.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Number = float | jax.Array  # an array is a float64 scalar that JAX traces
Tensor = jax.Array  # float64, each element a number of the parameter's dtype

_SINGLE = (8, 23)  # bits of exponent and mantissa
_FORMATS = {"float32": _SINGLE, "bfloat16": (8, 7), "float16": (5, 10)}
# Half of a dtype's least number, of bfloat16 by way of float32; of float64 nothing is rounded here.
_LARGEST_ROUNDED_TO_0 = {
    "float16": 2.0**-25,
    "bfloat16": 2.0**-134 + 2.0**-150,
    "float32": 2.0**-150,
    "float64": 0.0,
}
_LEAST_NORMAL_HALF = 2.0**-14
_TO_SUBNORMAL_HALF = 0.75  # near it, float32 has the multiples of 2 ** -24


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The operations on tensors of one dtype; call them under `jax.enable_x64(True)`."""

    dtype: str

    def wide(self, array: Any) -> Tensor:
        """The tensor of an array, which is rounded to the dtype first."""
        return lax.convert_element_type(jnp.asarray(array, self.dtype), jnp.float64)

    def narrow(self, tensor: Tensor) -> jax.Array:
        """The array of a tensor."""
        return lax.convert_element_type(tensor, jnp.dtype(self.dtype))

    def mul(self, x: Tensor, y: Tensor | Number) -> Tensor:
        """`x * y`."""
        return self.nearest(x * self._single(y))

    def sign_of_product(self, x: Tensor, y: Tensor) -> Tensor:
        """The sign of `x * y`, which in PyTorch may be subnormal; 0 where it is NaN."""
        product = x * y
        is_seen = jnp.abs(product) > _LARGEST_ROUNDED_TO_0[self.dtype]
        return jnp.where(is_seen, jnp.sign(product), 0.0)

    def div(self, x: Tensor, y: Tensor | Number) -> Tensor:
        """`x / y`."""
        return self.nearest(x / self._single(y))

    def add(self, x: Tensor, y: Tensor | Number, alpha: Number = 1.0) -> Tensor:
        """`x + alpha * y`, fused; numbers in the tensors' dtype."""
        return self.nearest(x + self.number(alpha) * self.number(y))

    def addcmul(self, x: Tensor, y: Tensor, z: Tensor, value: Number = 1.0) -> Tensor:
        """`x + (value * y) * z`, the second product fused with the sum."""
        return self.nearest(x + self._single(self._single(value) * y) * z)

    def addcdiv(self, x: Tensor, y: Tensor, z: Tensor, value: Number = 1.0) -> Tensor:
        """`x + (value * y) / z`."""
        return self.nearest(x + self._single(self._single(self._single(value) * y) / z))

    def lerp(self, start: Tensor, end: Tensor, weight: Number) -> Tensor:
        """`start + weight * (end - start)`, from the nearer end, fused."""
        fraction, difference = self._single(weight), self._single(end - start)
        near = start + fraction * difference
        far = end + self._single(fraction - 1.0) * difference
        if isinstance(weight, float):
            return self.nearest(near if abs(weight) < 0.5 else far)
        return self.nearest(jnp.where(jnp.abs(fraction) < 0.5, near, far))

    def sqrt(self, x: Tensor) -> Tensor:
        """The square root."""
        return self.nearest(jnp.sqrt(x))

    def norm(self, x: Tensor, axis: int | None = None) -> Tensor:
        """The root of the sum of squares, along an axis that is kept."""
        squares = self._single(jnp.sum(x * x, axis, keepdims=axis is not None))
        return self.nearest(jnp.sqrt(squares))

    def mean(self, x: Tensor, axis: int) -> Tensor:
        """The mean along an axis, which is kept."""
        return self.nearest(jnp.mean(x, axis, keepdims=True))

    def _single(self, x: Any) -> Any:
        """In float32, in which kernels compute; tensors of the dtype are so already."""
        if self.dtype == "float64":
            return x
        return lax.reduce_precision(jnp.asarray(x, jnp.float64), *_SINGLE)

    def number(self, x: Any) -> Any:
        """A number in the tensors' dtype; tensors stay as they are."""
        return self.nearest(x) if jnp.ndim(x) == 0 else x

    def nearest(self, x: Tensor) -> Tensor:
        """The nearest numbers of the dtype, by way of float32."""
        x = self._single(x)
        if self.dtype == "float16":  # whose subnormal numbers `reduce_precision` takes for zero
            small = self._single(x + _TO_SUBNORMAL_HALF) - _TO_SUBNORMAL_HALF
            return jnp.where(
                jnp.abs(x) < _LEAST_NORMAL_HALF,
                small,
                lax.reduce_precision(x, *_FORMATS["float16"]),
            )
        return lax.reduce_precision(x, *_FORMATS[self.dtype]) if self.dtype == "bfloat16" else x


def root(number: Number) -> Number:
    """The square root of a number."""
    return number**0.5 if isinstance(number, float) else jnp.sqrt(number)
