"""Modules of flax.linen and flax.nnx, seen as functions of their variables."""

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import meta, unfreeze

from optax_bridge.metadata.axis_metadata import boxed_as, boxed_like, is_box, unboxed, value_of
from optax_bridge.metadata.trees import Leaf, PyTree
from optax_bridge.optimizers.axis_roles import FactoredPartitioned
from optax_bridge.spmd.module.context import child_key
from optax_bridge.spmd.module.module import Method

# Arguments by which modules are told, by convention, whether they are trained; and which say the
# contrary.
_TRAINING = ("train", "training", "is_training")
_NOT_TRAINING = ("deterministic", "use_running_average")


def training_arguments(
    fn: Method, arguments: Mapping[str, PyTree], is_training: bool
) -> dict[str, bool]:
    """The arguments that tell a function whether it is for training, where the caller does not."""
    parameters = inspect.signature(fn).parameters
    flags = dict.fromkeys(_TRAINING, is_training) | dict.fromkeys(_NOT_TRAINING, not is_training)
    return {
        name: value for name, value in flags.items() if name in parameters and name not in arguments
    }


class LinenModule:
    """A module of flax.linen and examples of its inputs."""

    def __init__(
        self,
        module: nn.Module,
        examples: tuple[jax.ShapeDtypeStruct, ...],
        method: str,
        mesh_axes: Mapping[str, str | None] | None = None,
    ) -> None:
        self._module = module
        self._method = method
        self._examples = examples
        self._mesh_axes = mesh_axes
        self._abstract: dict[str, PyTree] | None = None

    def _init(self, key: jax.Array, *inputs: PyTree) -> dict[str, PyTree]:
        fn = getattr(self._module, self._method)
        training = training_arguments(fn, {}, False)
        # Names that are not the mesh's would be looked for in it.
        no_mesh = jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))
        with contextlib.nullcontext() if self._mesh_axes is None else no_mesh:
            variables = self._module.init({"params": key}, *inputs, **training, method=self._method)
        collections = {name: part for name, part in variables.items() if name != "intermediates"}
        return unfreeze(collections)

    def abstract(self) -> dict[str, PyTree]:
        """The variables by collection, as `ShapeDtypeStruct`s, boxed if they have metadata."""
        abstract = self._abstract
        if abstract is None:
            abstract = jax.eval_shape(self._init, jax.random.key(0), *self._examples)
            self._abstract = abstract
        return abstract

    def _on_mesh(self, box: Leaf) -> Leaf:
        """The box with the mesh's axes for its names; a logical one looks them up by itself."""
        if self._mesh_axes is None or type(box) not in (meta.Partitioned, FactoredPartitioned):
            return box
        return box.replace(names=tuple(self._mesh_axes.get(name) for name in box.names))

    def init(self, key: jax.Array) -> dict[str, PyTree]:
        """First values of the variables, without boxes."""
        zeros = jax.tree.map(lambda x: jax.numpy.zeros(x.shape, x.dtype), self._examples)
        return unboxed(self._init(key, *zeros))

    def call(
        self,
        variables: dict[str, PyTree],
        key: jax.Array | None,
        is_training: bool,
        args: tuple[PyTree, ...],
        kwargs: dict[str, PyTree],
    ) -> tuple[PyTree, dict[str, PyTree], dict[str, PyTree]]:
        """Calls the module."""
        fn = getattr(self._module, self._method)
        training = training_arguments(fn, kwargs, is_training)
        outputs, changed = self._module.apply(
            boxed_as(jax.tree.map(self._on_mesh, self.abstract(), is_leaf=is_box), variables),
            *args,
            rngs=None if key is None else {"params": key},
            mutable=[*(name for name in variables if name != "params"), "intermediates"],
            method=self._method,
            **training,
            **kwargs,
        )
        changed = unfreeze(unboxed(changed))
        return outputs, changed, changed.pop("intermediates", {})


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
    """Wraps a method to return also the values it sows; older Flax leaves them in the module."""

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
    # Without a key nothing random should run; if it does, it gets the same numbers each time.
    variable_key = child_key(jax.random.key(0) if key is None else key, "/".join(map(str, path)))
    assert variable_key is not None
    return variable_key if not spec.shape else jax.random.split(variable_key, spec.shape)
