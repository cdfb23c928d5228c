"""From Linen to NNX: a migrated optimizer on an `nnx.Module`, in the middle of its training."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from optax_bridge.checkpoints.moves import (
    Move,
    Plan,
    keeps,
    leaves_of_training,
    rename_items,
    with_renamed_parameters,
)
from optax_bridge.checkpoints.same_names import Paths, Scope, judge_types, leaf_item, ranges_of
from optax_bridge.correspondence.values import FINITE
from optax_bridge.exact.leaf_rule import difference
from optax_bridge.exact.transformation import take_step
from optax_bridge.metadata.axis_metadata import leaves_with_path, unboxed
from optax_bridge.metadata.paths import Names, key_names
from optax_bridge.metadata.trees import Extra, Leaf, Params, PyTree, Updates
from optax_bridge.training.full_train_state import moving_average
from optax_bridge.training.nnx_variables import (
    arrays,
    hand_over_collections,
    hand_over_keys,
    say_left,
    set_values,
)
from optax_bridge.training.train_state import TrainState

M = TypeVar("M", bound=nnx.Module)
_REMEDIES = {
    "params": "Give rename=, a function from the state's paths to the module's.",
    "opt_state": "Give the state the transformation that its opt_state belongs to.",
}
Filter = nnx.filterlib.Filter  # chooses variables of a module, as `nnx.state` takes it


class Optimizer(nnx.Optimizer[M]):
    """`nnx.Optimizer` by the exact step, bit for bit `TrainState.apply_gradients`.

    `nnx.Optimizer` itself also runs every transformation of `optax_bridge`; where a legacy
    optimizer updates a parameter twice (decoupled weight decay), it rounds once more per step.

        >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        >>> optimizer = Optimizer(model, optax_bridge.adam(1e-3, weight_decay=0.1), wrt=nnx.Param)
        >>> grads = nnx.grad(lambda model: model(jnp.ones((1, 2))).sum())(model)
        >>> updates = optimizer.update(model, grads)
        >>> int(optimizer.step[...])
        1
    """

    def update(self, model: M, grads: Updates, /, **kwargs: Extra) -> Updates:  # type: ignore[override]
        """Takes one step.

        Args:
          model: its parameters are replaced.
          grads: the model's gradients, as `nnx.grad` returns them.
          **kwargs: arguments of the transformation, such as `learning_rate=`.

        Returns:
          The update that the step added to the parameters, up to rounding, as Flax's.
        """
        grads = arrays(nnx.state(grads, self.wrt))
        params = arrays(nnx.state(model, self.wrt))
        new_params, new_state = take_step(
            self.tx, grads, arrays(self.opt_state), params, **arrays(kwargs)
        )
        nnx.update(model, new_params)
        set_values(self.opt_state, new_state)
        set_values(self.step, arrays(self.step) + 1)
        if self.average is not None:
            average = moving_average(self.ema_decay, self.ema_params, new_params)
            set_values(self.average.opt_state.ema, average)
        return difference(new_params, params, grads)

    # Flax's optimizer over the same parameters, whose state is the average: variables as the
    # version of Flax at hand has them.
    average: Any = None
    ema_decay: float = 0.0

    def keep_average(self, model: M, ema_params: Params, decay: float) -> None:
        """Continues an exponential moving average of a model's parameters."""
        self.ema_decay = decay
        self.average = nnx.Optimizer(model, optax.ema(decay, debias=False), wrt=self.wrt)
        set_values(self.average.opt_state.ema, ema_params)

    @property
    def ema_params(self) -> Params:
        """The exponential moving average of the parameters, arrays; None without one."""
        return None if self.average is None else arrays(self.average.opt_state.ema)


def hand_off(
    state: TrainState,
    model: M,
    *,
    rename: Callable[[str], str] = lambda path: path,
    wrt: Filter = nnx.Param,
    optimizer: type[nnx.Optimizer[Any]] = Optimizer,
    collections: Mapping[str, PyTree] | None = None,
    missing: str = "error",
    allow_nan: bool = False,
) -> nnx.Optimizer[M]:
    """Moves a Linen training to NNX: variables into the module, the rest into an optimizer.

    Batch statistics and other collections among the state's fields go to the module's variables.
    Its keys go to the module's streams of the same name, each folded with the stream's number if
    there are several, and its average goes to the optimizer's `ema_params`.

    Args:
      state: the training state.
      model: the module; its variables are replaced by the state's.
      rename: '/'-joined path of a Linen variable, `Dense_0/kernel`, to that of the module's,
        `linear1/kernel`.
      wrt: the variables to optimize.
      optimizer: `Optimizer`, or `nnx.Optimizer`, which keeps no average.
      collections: name -> collection, for those without a field in the state.
      missing: "error", or "keep": variables that the state lacks keep their values.
      allow_nan: let NaN and infinities in parameters and moments through.

    Returns:
      The optimizer, whose next `update` is the step that the state would have taken.

    Raises:
      ValueError: the module has other parameters, shapes or types, or a variable that the state
        lacks; or a parameter or moment is not finite.

    Warns:
      LeftOverWarning: neither module nor optimizer has a place for some part of the state.
      ConvertedWarning: all parameters have another floating-point type than the module's.
    """
    keep = keeps(missing)
    target = nnx.state(model, wrt)
    leaves = {key_names(path): arrays(leaf) for path, leaf in leaves_with_path(target)}
    source = leaves_of_training(state.params, state.opt_state)
    new_names = with_renamed_parameters(
        state.params, state.opt_state, lambda path: tuple(rename("/".join(path)).split("/"))
    )
    params = _move(source, new_names, "params", leaves)
    _check_numbers(state, leaves, params, allow_nan)
    treedef = jax.tree.structure(unboxed(target))
    nnx.update(model, treedef.unflatten([params[path] for path in leaves]))
    new = optimizer(model, state.tx, wrt=wrt)
    template = arrays(new.opt_state)
    flat = {key_names(path): leaf for path, leaf in leaves_with_path(unboxed(template))}
    moved = _move(source, new_names, "opt_state", flat)
    set_values(new.opt_state, jax.tree.structure(template).unflatten(moved.values()))
    set_values(new.step, jnp.asarray(state.step, jnp.uint32))
    remaining = hand_over_collections(state, model, rename, wrt, collections or {}, keep)
    remaining += hand_over_keys(state, model)
    average, decay = getattr(state, "ema_params", None), getattr(state, "ema_decay", None)
    if average is not None and decay is not None and isinstance(new, Optimizer):
        averages = _move(leaves_of_training(average, ()), new_names, "params", leaves)
        new.keep_average(model, treedef.unflatten(averages.values()), decay)
    elif average is not None:
        remaining.append("ema_params")
    say_left(remaining)
    return new


def _move(
    source: Mapping[Names, Leaf],
    new_names: Mapping[Names, Names],
    part: str,
    expected: Mapping[Names, Leaf],
) -> dict[Names, Leaf]:
    """A part of a training by its paths over the module's parameters, in the module's order."""
    items = rename_items(
        source, {(part, *path): leaf for path, leaf in expected.items()},
        {path: new for path, new in new_names.items() if path[0] == part}, has_dtypes=False,
    )  # fmt: skip
    plan = Plan(
        "hand_off", tuple(items), _REMEDIES[part], if_missing="",
        requirement=f"the {part} of the state over the module's parameters",
    )  # fmt: skip
    plan.check()
    moved = plan.apply()
    return {path: moved[part, *path] for path in expected}


def _check_numbers(
    state: TrainState,
    expected: Mapping[tuple[str, ...], Leaf],
    params: Mapping[tuple[str, ...], Leaf],
    allow_nan: bool,
) -> None:
    """Checks types and numbers as restoring does, from the module's parameters and the state's."""
    scope = Scope("hand_off", "params")
    pairs = (
        leaf_item(leaf, params[path], Paths(("params", *path)), scope)
        for path, leaf in expected.items()
    )
    items = judge_types(filter(None, pairs), ("params",))
    ranges = ranges_of(state.opt_state, ("opt_state",))
    moments = leaves_of_training({}, state.opt_state)
    items += [
        Move(path, path, leaf=leaf, within=ranges.get(path, FINITE))
        for path, leaf in moments.items()
    ]
    Plan("hand_off", tuple(items)).check(allow_nan=allow_nan)
