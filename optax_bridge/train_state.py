"""The training state: parameters, optimizer state and step in one pytree (FLIP 1009)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import optax
from flax.linen.fp8_ops import OVERWRITE_WITH_GRADIENT
from flax.training import train_state

import legacy_optim
from optax_bridge import conversion
from optax_bridge.arguments import accepted_arguments
from optax_bridge.transformation import step as take_step

_SET_BY_THE_STEP = ("step", "params", "opt_state")


class TrainState(train_state.TrainState):
    """Flax's TrainState, with exact steps, per-call arguments and a way in from `flax.optim`.

    Subclass it for further fields, as Flax's:

        class BatchNormState(optax_bridge.TrainState):
            batch_stats: Any

    Attributes:
      step: steps taken, int32 scalar.
      apply_fn: usually `model.apply`; static.
      params: the parameters, any pytree of arrays.
      tx: the transformation; static.
      opt_state: its state.
    """

    def apply_gradients(self, *, grads: Any, **kwargs: Any) -> Self:
        """Takes one step.

        Args:
          grads: gradients, a tree like `params`.
          **kwargs: a field of this state is replaced by the value; anything else is handed to the
            transformation (`learning_rate=`, `value=`, `grad=`, `value_fn=`).

        Returns:
          The next state, `step` advanced by one.

        Raises:
          TypeError: an argument that is neither a field nor taken by the transformation, or a field
            that the step itself sets.
          ValueError: `grads` is not a tree like `params`.
        """
        fields = {field.name for field in dataclasses.fields(self)}
        extra = {name: value for name, value in kwargs.items() if name not in fields}
        replaced = {name: value for name, value in kwargs.items() if name in fields}
        self._check(replaced, extra)
        _check_structure(grads, self.params)
        params, opt_state = take_step(
            self.tx, _optimized(grads), self.opt_state, _optimized(self.params), **extra
        )
        if _has_overwritten(grads):
            params = {"params": params, OVERWRITE_WITH_GRADIENT: grads[OVERWRITE_WITH_GRADIENT]}
        return self.replace(step=self.step + 1, params=params, opt_state=opt_state, **replaced)

    def update(self, *, grads: Any, **kwargs: Any) -> Self:
        """The same as `apply_gradients`; FLIP 1009 writes the step both ways."""
        return self.apply_gradients(grads=grads, **kwargs)

    @classmethod
    def create(
        cls,
        *,
        apply_fn: Callable[..., Any] | None,
        params: Any,
        tx: optax.GradientTransformation,
        **kwargs: Any,
    ) -> Self:
        """Makes a state at step 0.

        Args:
          apply_fn: usually `model.apply`.
          params: the parameters, any pytree of arrays.
          tx: the transformation.
          **kwargs: the subclass's own fields.

        Returns:
          The state, with `tx.init(params)` as optimizer state.
        """
        if "opt_state" not in kwargs:
            kwargs["opt_state"] = tx.init(_optimized(params))
        kwargs.setdefault("step", jnp.zeros([], jnp.int32))
        fields: dict[str, Any] = dict(apply_fn=apply_fn, params=params, tx=tx, **kwargs)
        return cls(**fields)

    @classmethod
    def from_legacy(
        cls,
        optimizer: legacy_optim.Optimizer,
        *,
        apply_fn: Callable[..., Any] | None = None,
        exact: bool = True,
        **kwargs: Any,
    ) -> Self:
        """Takes a legacy optimizer over, in the middle of its training.

        Args:
          optimizer: parameters, state and step are taken from it.
          apply_fn: usually `model.apply`.
          exact: see `optax_bridge.from_legacy`.
          **kwargs: the subclass's own fields.

        Returns:
          A state whose next step is the one that the optimizer would have taken.

        Raises:
          ValueError: the optimizer is replicated, or its state is not one that its definition
            makes.
          UnsupportedSetting: there is no such transformation for the optimizer's settings.
        """
        tx, opt_state = conversion.to_optax(optimizer, exact=exact)
        return cls.create(
            apply_fn=apply_fn,
            params=optimizer.target,
            tx=tx,
            opt_state=opt_state,
            step=jnp.asarray(optimizer.state.step, jnp.int32),
            **kwargs,
        )

    def to_legacy(self, definition: legacy_optim.OptimizerDef) -> legacy_optim.Optimizer:
        """The legacy optimizer that goes on from here.

        Args:
          definition: the definition that this state's transformation corresponds to.

        Returns:
          An `Optimizer` with these parameters, this state and this step.

        Raises:
          ValueError: the optimizer state is not that of the definition's transformation.
        """
        return conversion.to_legacy(definition, self.params, self.opt_state, self.step)

    def _check(self, replaced: dict[str, Any], extra: dict[str, Any]) -> None:
        taken = [name for name in replaced if name in _SET_BY_THE_STEP]
        if taken:
            raise TypeError(
                f"apply_gradients sets {', '.join(taken)} itself; to change it as well, use "
                "state.replace(...) before or after the step"
            )
        if not extra:
            return
        accepted = accepted_arguments(self.tx)
        unknown = [] if accepted is None else sorted(set(extra) - accepted)
        if unknown:
            own = sorted({f.name for f in dataclasses.fields(self)} - {"tx", *_SET_BY_THE_STEP})
            raise TypeError(
                f"apply_gradients got {', '.join(unknown)}, which is neither a field of "
                f"{type(self).__name__} ({', '.join(own)}) nor an argument that the transformation "
                f"takes per call ({', '.join(sorted(accepted or ())) or 'none'})"
            )


def _has_overwritten(tree: Any) -> bool:
    """Whether a collection is to be replaced by its gradient: Flax keeps its fp8 scales so."""
    return isinstance(tree, Mapping) and OVERWRITE_WITH_GRADIENT in tree


def _optimized(tree: Any) -> Any:
    """The part of parameters or gradients that the transformation sees."""
    return tree["params"] if _has_overwritten(tree) else tree


def _check_structure(grads: Any, params: Any) -> None:
    if jax.tree.structure(grads) == jax.tree.structure(params):
        return
    paths = [
        {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (grads, params)
    ]
    differing = sorted(paths[0] ^ paths[1])
    where = f"they differ at {', '.join(differing[:5])}" if differing else "the containers differ"
    raise ValueError(
        f"grads is not a tree like params: {where}. Expected {jax.tree.structure(params)}, found "
        f"{jax.tree.structure(grads)}. Differentiate with respect to state.params."
    )
