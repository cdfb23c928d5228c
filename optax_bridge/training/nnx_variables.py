"""Variables of an `nnx.Module` other than its parameters, from the state of a Linen training."""

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from optax_bridge._text import listing
from optax_bridge.checkpoints.errors import LeftOverWarning
from optax_bridge.checkpoints.moves import Plan, rename_items
from optax_bridge.metadata.axis_metadata import is_variable, leaves_with_path, unboxed
from optax_bridge.metadata.paths import Names, key_names
from optax_bridge.metadata.trees import Leaf, PyTree
from optax_bridge.training.full_train_state import calls_of

# Fields that are handed over otherwise, or belong to the program.
_OWN = {"step", "params", "opt_state", "apply_fn", "tx", "rngs", "ema_params", "ema_decay"}
_OWN |= {"accumulate_every", "accumulated", "micro_step"}


def hand_over_collections(
    state: PyTree,
    model: nnx.Module,
    rename: Callable[[str], str],
    wrt: PyTree,
    collections: Mapping[str, PyTree],
    keep: bool,
) -> list[str]:
    """Copies batch statistics and other collections into the module's variables."""
    passing = (nnx.Intermediate, nnx.RngState)  # of one call, or a stream of keys
    target = nnx.state(model, nnx.Not(nnx.Any(wrt, *passing)))
    places = {key_names(path): arrays(leaf) for path, leaf in leaves_with_path(target)}
    source: dict[Names, Leaf] = {}
    new_names: dict[Names, Names] = {}
    remaining: list[str] = []
    for name, value in _collections(state, collections):
        for path, leaf in leaves_with_path(unboxed(value)):
            names = key_names(path)
            # A field may hold one collection, or several by name.
            candidates = [_rename(rename, n) for n in (names, names[1:]) if n]
            place = next((p for p in candidates if p in places), None)
            if place is None:
                remaining.append("/".join((name, *names)))
            else:
                source[name, *names], new_names[name, *names] = leaf, place
    plan = Plan(
        "hand_off", tuple(rename_items(source, places, new_names, has_dtypes=False)),
        "Give them by collections={'batch_stats': ...}, or rename= from the state's paths "
        "to the module's; missing='keep' leaves them unchanged.",
        "a value for each variable of the module", if_missing="",
    )  # fmt: skip
    plan.check(keep=keep)
    if plan.moves:
        values = {**places, **plan.apply()}
        nnx.update(model, jax.tree.structure(unboxed(target)).unflatten(values.values()))
    return remaining


def _collections(state: PyTree, collections: Mapping[str, PyTree]) -> Iterator[tuple[str, PyTree]]:
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if field.name not in _OWN and field.metadata.get("pytree_node", True) and value is not None:
            yield field.name, value
    yield from collections.items()


def _rename(rename: Callable[[str], str], names: tuple[str, ...]) -> tuple[str, ...]:
    path = "/".join(names)
    try:
        return tuple(rename(path).split("/"))
    except (LookupError, ValueError):  # a function for the paths of parameters alone
        return names


def hand_over_keys(state: PyTree, model: nnx.Module) -> list[str]:
    """Copies the state's keys into the module's streams of the same names."""
    rngs: dict[str, jax.Array] = dict(getattr(state, "rngs", None) or {})
    streams = nnx.state(model, nnx.RngState)
    flat = leaves_with_path(streams)
    values = [arrays(leaf) for _, leaf in flat]
    numbers: dict[str, int] = dict.fromkeys(rngs, 0)
    tags = [getattr(leaf, "tag", None) for _, leaf in flat]
    for index, (path, _) in enumerate(flat):
        tag = tags[index]
        if tag not in rngs:
            continue
        if key_names(path)[-1] == "count":
            values[index] = jnp.asarray(calls_of(state), values[index].dtype)
        else:
            several = sum(t == tag for t in tags) > 2
            key = _as_typed_key(rngs[tag])
            values[index] = jax.random.fold_in(key, numbers[tag]) if several else key
            numbers[tag] += 1
    if any(numbers.values()):
        nnx.update(model, jax.tree.structure(unboxed(streams)).unflatten(values))
    remaining = [f"rngs/{name}" for name, number in numbers.items() if number == 0]
    return remaining + (["accumulated"] if getattr(state, "accumulated", None) is not None else [])


def _as_typed_key(key: jax.Array) -> jax.Array:
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return key if is_typed else jax.random.wrap_key_data(jnp.asarray(key))


def say_left(remaining: list[str]) -> None:
    """Warns of parts of the state that were not handed over."""
    if remaining:
        warnings.warn(
            f"hand_off: {listing(remaining)} left over: neither the module nor the optimizer has a "
            "place for it. The state still has it.",
            LeftOverWarning,
            stacklevel=3,
        )


def arrays(tree: PyTree) -> PyTree:
    """Returns the tree with the array of each variable, as `nnx.as_pure` of Flax 0.12.7."""

    def raw(leaf: Leaf) -> Leaf:
        return leaf.get_raw_value() if is_variable(leaf) else leaf

    return jax.tree.map(raw, tree, is_leaf=is_variable)


def set_values(variables: PyTree, values: PyTree) -> None:
    """Puts values into the variables of a tree."""
    flat, treedef = jax.tree.flatten(variables, is_leaf=is_variable)
    for variable, value in zip(flat, treedef.flatten_up_to(values), strict=True):
        variable.set_raw_value(value)
