"""A training state with the fields that programs often add to Flax's."""

from collections.abc import Callable
from typing import Never, Self

import jax
import jax.numpy as jnp
import optax
from flax import struct

from optax_bridge.metadata.axis_metadata import boxed_as
from optax_bridge.metadata.trees import Extra, Leaf, Params, PyTree, Updates
from optax_bridge.training.train_state import NOT_GIVEN, TrainState, strong


class FullTrainState(TrainState, kw_only=True):
    """`TrainState` with mutable collections, keys, averages, accumulation and loss scaling.

    A field that is not used stays None and costs nothing.

        >>> state = FullTrainState.create(
        ...     apply_fn=None, params=jnp.ones(2), tx=optax_bridge.sgd(0.5), ema_decay=0.75,
        ...     accumulate_every=2, rngs={"dropout": jax.random.key(0)},
        ... )
        >>> for _ in range(4):
        ...     state = state.apply_gradients(grads=jnp.ones(2))
        >>> int(state.step), state.params.tolist(), state.ema_params.tolist()
        (2, [0.0, 0.0], [0.65625, 0.65625])
        >>> list(state.step_rngs())
        ['dropout']

    Attributes:
      batch_stats: a mutable collection, replaced by `apply_gradients(batch_stats=...)`.
      rngs: name -> key; `step_rngs()` returns those of this step.
      ema_params: exponential moving average of the parameters, a tree like them; float32 for
        bfloat16 and float16, in which it would not move. `create(ema_params=...)` sets its start.
      ema_decay: its decay per step, None for no average; static.
      accumulate_every: calls of `apply_gradients` that make one step, with the mean of their
        gradients; static.
      accumulated: sum of the gradients since the last step, a tree like the parameters, float32
        for bfloat16 and float16; the mean is in the gradients' dtype.
      micro_step: calls since the last step, int32 scalar.
      dynamic_scale: a `legacy_optim.DynamicScale` or Flax's.
    """

    batch_stats: PyTree = None
    rngs: PyTree = None
    ema_params: Params = None
    ema_decay: float | None = struct.field(pytree_node=False, default=None)
    accumulate_every: int = struct.field(pytree_node=False, default=1)
    accumulated: Updates = None
    micro_step: Leaf = None
    dynamic_scale: PyTree = None

    @classmethod
    def create(
        cls,
        apply_fn: Callable[..., PyTree] | None,
        params: Params,
        tx: optax.GradientTransformation,
        *,
        ema_decay: float | None = None,
        accumulate_every: int = 1,
        dynamic_scale: PyTree = None,
        **kwargs: Extra,
    ) -> Self:
        """Makes a state at step 0.

        Args:
          apply_fn: usually `model.apply`.
          params: the parameters.
          tx: the transformation.
          ema_decay: decay per step of the average of the parameters, None for no average.
          accumulate_every: calls of `apply_gradients` that make one step.
          dynamic_scale: see the class.
          **kwargs: `batch_stats`, `rngs` and the subclass's own fields.

        Returns:
          The state; the average starts at the parameters.

        Raises:
          ValueError: `accumulate_every` is less than 1, or `ema_decay` not within [0, 1].
        """
        if accumulate_every < 1:
            raise ValueError(f"accumulate_every: expected 1 or more, found {accumulate_every}")
        params = jax.tree.map(strong, params)
        if ema_decay is not None:
            if not 0 <= ema_decay <= 1:
                raise ValueError(f"ema_decay: expected a number in [0, 1], found {ema_decay}")
            kwargs.setdefault("ema_params", jax.tree.map(_wide, params))
        if accumulate_every > 1:
            zeros = jax.tree.map(lambda param: jnp.zeros_like(_wide(param)), params)
            kwargs.setdefault("accumulated", zeros)
            kwargs.setdefault("micro_step", jnp.zeros([], jnp.int32))
        if dynamic_scale is not None:  # Python numbers would be arrays, and recompile, after a step
            dynamic_scale = jax.tree.map(_strong, dynamic_scale)
        return super().create(
            apply_fn=apply_fn,
            params=params,
            tx=tx,
            ema_decay=ema_decay,
            accumulate_every=accumulate_every,
            dynamic_scale=dynamic_scale,
            **kwargs,
        )

    def step_rngs(self) -> dict[str, jax.Array]:
        """Returns the keys of this step, for `apply_fn(..., rngs=...)`; the state is unchanged."""
        count = calls_of(self)
        return {name: jax.random.fold_in(key, count) for name, key in (self.rngs or {}).items()}

    def apply_gradients(
        self,
        *misplaced: Never,
        grads: Updates = NOT_GIVEN,
        finite: Leaf = None,
        **kwargs: Extra,
    ) -> Self:
        """Takes one step, or adds the gradients of one of several micro-batches.

        Args:
          *misplaced: pass nothing by position: gradients go by keyword.
          grads: gradients, a tree like `params`.
          finite: True if they are finite, as `DynamicScale.value_and_grad` returns it. If False,
            parameters, state, step and collections stay unchanged; only a `dynamic_scale` passed
            here is taken.
          **kwargs: as for `TrainState.apply_gradients`.

        Returns:
          The next state.
        """
        if self.accumulate_every == 1 or misplaced or grads is NOT_GIVEN:
            new = self._with_average(super().apply_gradients(*misplaced, grads=grads, **kwargs))
        else:
            new = self._accumulate(grads, kwargs)
        if finite is None:
            return new
        before = self.replace(dynamic_scale=kwargs.get("dynamic_scale", self.dynamic_scale))
        return jax.tree.map(lambda n, b: jnp.where(finite, n, b) if _selects(n) else n, new, before)

    def _accumulate(self, grads: Updates, kwargs: dict[str, Extra]) -> Self:
        """Adds gradients up, and takes the step with their mean at the last call."""
        replaced, extra = self._split_arguments(grads, kwargs)
        grads = boxed_as(self.params, grads)  # with boxes where the parameters have them
        total = jax.tree.map(jnp.add, self.accumulated, grads)

        def wait(state: Self) -> Self:
            return state.replace(accumulated=total, micro_step=state.micro_step + 1)

        def go(state: Self) -> Self:
            mean = jax.tree.map(
                lambda s, g: (s / state.accumulate_every).astype(jnp.result_type(g)), total, grads
            )
            new = state._plain_step(grads=mean, **extra)
            zeros = jax.tree.map(jnp.zeros_like, total)
            new = new.replace(accumulated=zeros, micro_step=jnp.zeros_like(state.micro_step))
            return state._with_average(new)

        last = self.micro_step == self.accumulate_every - 1
        return jax.lax.cond(last, go, wait, self).replace(**replaced)

    def _plain_step(self, grads: Updates, **extra: Extra) -> Self:
        return super().apply_gradients(grads=grads, **extra)

    def _with_average(self, new: Self) -> Self:
        if self.ema_decay is None:
            return new
        average = moving_average(self.ema_decay, self.ema_params, new.params)
        return new.replace(ema_params=average)


def moving_average(decay: float, averages: Params, params: Params) -> Params:
    """The exponential moving average after one more step, in its own dtypes."""

    def average(old: jax.Array, param: jax.Array) -> jax.Array:
        return (decay * old + (1.0 - decay) * param.astype(old.dtype)).astype(old.dtype)

    return jax.tree.map(average, averages, params)


def calls_of(state: TrainState) -> int | jax.Array:
    """Returns how often `apply_gradients` was called on a state; keys are folded with it."""
    micro_step = getattr(state, "micro_step", None)
    if micro_step is None:
        return state.step
    return state.step * getattr(state, "accumulate_every", 1) + micro_step


def _wide(param: jax.Array) -> jax.Array:
    """A copy in which many small terms add up: bfloat16 keeps 8 bits, and loses them."""
    dtype = jnp.result_type(param)
    floating = jnp.issubdtype(dtype, jnp.floating)
    return jnp.array(param, jnp.promote_types(dtype, jnp.float32) if floating else dtype)


def _strong(value: Leaf) -> jax.Array:
    """An array that is not weakly typed, as those that a step returns."""
    return jnp.asarray(value, jnp.float32 if isinstance(value, float) else jnp.result_type(value))


def _selects(leaf: Leaf) -> bool:
    """True if `jnp.where` can choose this leaf: numbers, and keys as well."""
    return hasattr(leaf, "dtype")
