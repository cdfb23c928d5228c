"""From Linen to NNX: a migrated optimizer on an `nnx.Module`, in the middle of its training."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from optax_bridge.axis_metadata import key_names, leaves_with_path, unboxed
from optax_bridge.boxed import owners_of
from optax_bridge.train_state import TrainState
from optax_bridge.transformation import step as take_step

M = TypeVar("M", bound=nnx.Module)


class Optimizer(nnx.Optimizer[M]):
    """`nnx.Optimizer` by the exact step, bit for bit `TrainState.apply_gradients`.

    `nnx.Optimizer` itself runs every transformation of `optax_bridge` as well; where a legacy
    optimizer touches a parameter twice (decoupled weight decay), it rounds once more per step.
    """

    def update(self, model: M, grads: Any, /, **kwargs: Any) -> None:  # type: ignore[override]
        """Takes one step.

        Args:
          model: its parameters are replaced.
          grads: what `nnx.grad` returns for it.
          **kwargs: arguments of the transformation, `learning_rate=`, say.
        """
        params = nnx.as_pure(nnx.state(model, self.wrt))
        new_params, new_state = take_step(
            self.tx,
            nnx.as_pure(nnx.state(grads, self.wrt)),
            nnx.as_pure(self.opt_state),
            params,
            **nnx.as_pure(kwargs),
        )
        nnx.update(model, new_params)
        nnx.update(self.opt_state, nnx.state(new_state))
        self.step[...] += 1


def hand_off(
    state: TrainState,
    model: M,
    *,
    rename: Callable[[str], str] = lambda path: path,
    wrt: Any = nnx.Param,
    optimizer: type[nnx.Optimizer[Any]] = Optimizer,
) -> nnx.Optimizer[M]:
    """Takes a Linen training over: parameters into the module, moments and step into an optimizer.

    Args:
      state: the training state.
      model: the module; its parameters are replaced by the state's.
      rename: '/'-joined path of a Linen parameter, `Dense_0/kernel`, to that of the module's,
        `linear1/kernel`.
      wrt: which variables are optimized.
      optimizer: `Optimizer`, or `nnx.Optimizer`.

    Returns:
      The optimizer, whose next `update` is the step that the state would have taken.

    Raises:
      ValueError: the module has other parameters, or another shape of one.
    """
    target = nnx.state(model, wrt)
    flat = leaves_with_path(target)
    moved = {tuple(rename("/".join(key_names(p))).split("/")): v for p, v in _flat(state.params)}
    places = {key_names(path): index for index, (path, _) in enumerate(flat)}
    if moved.keys() != places.keys():
        differing = sorted("/".join(path) for path in moved.keys() ^ places.keys())
        raise ValueError(
            f"the module's parameters are not those of the state: they differ at {differing[:5]}. "
            "Give rename=, a function from the state's paths to the module's."
        )
    for path, leaf in flat:
        found, expected = jnp.shape(moved[key_names(path)]), jnp.shape(jax.tree.leaves(leaf)[0])
        if found != expected:
            raise ValueError(
                f"{'/'.join(key_names(path))}: the module has shape {expected}, the state {found}"
            )
    values = [moved[key_names(path)] for path, _ in flat]
    treedef = jax.tree.structure(unboxed(target))
    nnx.update(model, treedef.unflatten(values))
    made = optimizer(model, state.tx, wrt=wrt)
    made.opt_state = nnx.data(_moved_state(made.opt_state, state, list(moved), places))
    made.step = type(made.step)(jnp.asarray(state.step, jnp.uint32))
    return made


def _moved_state(
    template: Any, state: TrainState, moved: list[tuple[str, ...]], places: dict[Any, int]
) -> Any:
    """The optimizer's state in the structure that it has over the module's parameters."""
    old_places = {key_names(path): index for index, (path, _) in enumerate(_flat(state.params))}
    values = {}
    for key, leaf in _keyed(state.opt_state, old_places):
        before, owner, after = key
        values[before, None if owner is None else places[moved[owner]], after] = leaf
    leaves, treedef = jax.tree.flatten(template)
    keys = [key for key, _ in _keyed(nnx.as_pure(template), places)]
    missing = [key for key in keys if key not in values]
    if missing or len(values) != len(leaves):
        raise ValueError(f"opt_state: no equal in the state for {missing[:3]}")
    return treedef.unflatten([values[key] for key in keys])


def _keyed(opt_state: Any, places: dict[tuple[str, ...], int]) -> list[tuple[Any, Any]]:
    """The leaves of a state by what stands before and after their parameter's path."""
    flat = _flat(opt_state)
    keyed = []
    for (path, leaf), span in zip(flat, owners_of([p for p, _ in flat], places), strict=True):
        names = key_names(path)
        key: Any = (names, None, ())
        if span is not None:
            start, end = span
            key = (names[:start], places[names[start:end]], names[end:])
        keyed.append((key, leaf))
    return keyed


def _flat(tree: Any) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_leaves_with_path(unboxed(tree))
