"""Dynamic loss scaling (Micikevicius et al. 2018): `flax.optim.dynamic_scale`."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from legacy_optim.typing import Array, PyTree, Scalar


class DynamicScaleResult(NamedTuple):
    """Result of a function that `DynamicScale.value_and_grad` made."""

    dynamic_scale: "DynamicScale"
    finite: Array
    aux: PyTree
    grad: jax.Array


class DynamicScale(struct.PyTreeNode):
    """Scales the loss so that float16 gradients neither vanish nor overflow.

    Attributes:
      growth_factor: factor of the scale after `growth_interval` finite steps; static.
      backoff_factor: factor of the scale after a step that was not finite; static.
      growth_interval: number of finite steps before the scale grows; static.
      fin_steps: finite steps since the scale last changed.
      scale: the factor of the loss.
    """

    growth_factor: float = struct.field(pytree_node=False, default=2.0)
    backoff_factor: float = struct.field(pytree_node=False, default=0.5)
    growth_interval: int = struct.field(pytree_node=False, default=2000)
    fin_steps: Scalar = 0
    scale: Scalar = 65536.0

    def value_and_grad(
        self,
        fun: Callable[..., PyTree],
        argnums: int | Sequence[int] = 0,
        has_aux: bool = False,
        axis_name: str | None = None,
    ) -> Callable[..., DynamicScaleResult]:
        """`jax.value_and_grad` of the scaled loss, with loss and gradients scaled back.

        Args:
          fun: returns a scalar loss, or (loss, auxiliary output) with `has_aux`.
          argnums: arguments to differentiate with respect to.
          has_aux: True if `fun` returns auxiliary output.
          axis_name: axis of a pmap over which the gradients are averaged.

        Returns:
          A function of `fun`'s arguments that returns a `DynamicScaleResult`.
        """

        @functools.wraps(fun)
        def scaled_loss(*args: PyTree) -> PyTree:
            out = fun(*args)
            return (self.scale * out[0], out[1]) if has_aux else self.scale * out

        grad_fn = jax.value_and_grad(scaled_loss, argnums, has_aux)

        def value_and_grad(*args: PyTree) -> DynamicScaleResult:
            out, grad = grad_fn(*args)
            out = (out[0] / self.scale, out[1]) if has_aux else out / self.scale
            grad = jax.tree.map(lambda g: jnp.asarray(g, jnp.float32) / self.scale, grad)
            if axis_name is not None:
                grad = lax.pmean(grad, axis_name)
            finite = jnp.array(True)
            for leaf in jax.tree.leaves(grad):
                finite &= jnp.all(lax.is_finite(leaf))
            return DynamicScaleResult(self._next(finite), finite, out, grad)

        return value_and_grad

    def _next(self, finite: jax.Array) -> "DynamicScale":
        grows = self.fin_steps == self.growth_interval
        grown = jnp.where(grows & finite, self.scale * self.growth_factor, self.scale)
        scale = jnp.where(finite, grown, self.scale * self.backoff_factor)
        fin_steps = jnp.where(grows | ~finite, 0, self.fin_steps + 1)
        return self.replace(fin_steps=fin_steps, scale=scale)
