"""A module of flax.nnx, seen as functions of its variables."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from optax_bridge.metadata.axis_metadata import boxed_like, value_of
from optax_bridge.metadata.trees import Leaf, PyTree
from optax_bridge.spmd.layer.linen_module import training_arguments
from optax_bridge.spmd.module.context import child_key
from optax_bridge.spmd.module.wrapping import Method

Path = tuple[Any, ...]  # names and indices


class NnxModule:
    """A module of flax.nnx, made from a graph definition for each call."""

    def __init__(self, make: Callable[[jax.Array], nnx.Module], method: str) -> None:
        self._make = make
        self._method = method
        with _sharded_later():
            module = nnx.eval_shape(lambda: make(jax.random.key(0)))
        self._graph, state = nnx.split(module)
        self._variables = dict(nnx.to_flat_state(state))

    def _by_collection(self, leaves: dict[Path, Leaf]) -> dict[str, PyTree]:
        """Leaves by path as nested dicts, in the collections that linen would have them in."""
        nested: dict[str, PyTree] = {}
        for path, leaf in leaves.items():
            collection = _collection(self._variables[path])
            if collection is not None:
                part = nested
                for name in (collection, *map(str, path[:-1])):
                    part = part.setdefault(name, {})
                part[str(path[-1])] = leaf
        return nested

    def abstract(self) -> dict[str, PyTree]:
        """The variables by collection, as `nnx.Variable`s of `ShapeDtypeStruct`s."""
        return self._by_collection(self._variables)

    def init(self, key: jax.Array) -> dict[str, PyTree]:
        """First values of the variables."""
        with _sharded_later():
            state = dict(nnx.to_flat_state(nnx.state(self._make(key))))
        return self._by_collection({path: value_of(variable) for path, variable in state.items()})

    def call(
        self,
        variables: dict[str, PyTree],
        key: jax.Array | None,
        is_training: bool,
        args: tuple[PyTree, ...],
        kwargs: dict[str, PyTree],
    ) -> tuple[PyTree, dict[str, PyTree], dict[str, PyTree]]:
        """Calls the module; see `LinenModule.call`."""
        state = {}
        for path, variable in self._variables.items():
            collection = _collection(variable)
            if collection is None:
                value = _random(path, variable, key)
            else:
                value = variables
                for name in (collection, *map(str, path)):
                    value = value[name]
            state[path] = boxed_like(variable, value)
        module = nnx.merge(self._graph, nnx.from_flat_state(state))
        (module.train if is_training else module.eval)()
        fn = getattr(module, self._method)
        training = training_arguments(fn, kwargs, is_training)
        outputs, sown = _with_intermediates(fn)(*args, **training, **kwargs)
        after = dict(nnx.to_flat_state(nnx.state(module)))
        declared = {path: value_of(v) for path, v in after.items() if path in self._variables}
        changed = self._by_collection(declared)
        changed.pop("params", None)
        sown.update({path: v for path, v in after.items() if path not in self._variables})
        named = {"/".join(map(str, path)): value_of(variable) for path, variable in sown.items()}
        return outputs, changed, named


def _sharded_later() -> contextlib.AbstractContextManager[object]:
    """A scope in which names of axes are only names; parameters are sharded by their specs."""
    return nnx.use_eager_sharding(False)


def _with_intermediates(fn: Method) -> Callable[..., tuple[PyTree, dict[Path, Leaf]]]:
    """The method, returning also what it sows; older versions of Flax leave that in the module."""

    def call(*args: PyTree, **kwargs: PyTree) -> tuple[PyTree, dict[Path, Leaf]]:
        capture = getattr(nnx, "capture", None)
        if capture is None:
            return fn(*args, **kwargs), {}
        outputs, sown = capture(fn, nnx.Intermediate)(*args, **kwargs)
        return outputs, dict(nnx.to_flat_state(sown))

    return call


def _collection(variable: Leaf) -> str | None:
    """The collection that the variable is in; None for the state of random numbers."""
    kind = type(variable)
    return None if issubclass(kind, nnx.RngState) else nnx.variable_name_from_type(kind)


def _random(path: Path, variable: Leaf, key: jax.Array | None) -> jax.Array:
    """The state of a random stream in a call: a key from the call's, a count of 0."""
    spec = value_of(variable)
    if not jnp.issubdtype(spec.dtype, jax.dtypes.prng_key):
        return jnp.zeros(spec.shape, spec.dtype)
    # Without a key nothing random should run; what does gets the same numbers each time.
    variable_key = child_key(jax.random.key(0) if key is None else key, "/".join(map(str, path)))
    assert variable_key is not None
    return variable_key if not spec.shape else jax.random.split(variable_key, spec.shape)
