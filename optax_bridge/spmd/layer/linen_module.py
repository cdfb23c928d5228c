"""A module of flax.linen, seen as functions of its variables."""

import contextlib
import inspect
from collections.abc import Mapping

import flax.linen as nn
import jax
from flax.core import meta, unfreeze

from optax_bridge.metadata.axis_metadata import boxed_as, is_box, unboxed
from optax_bridge.metadata.trees import Leaf, PyTree
from optax_bridge.optimizers.axis_roles import FactoredPartitioned
from optax_bridge.spmd.module.wrapping import Method

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
    """A module of flax.linen and examples of its inputs.

    Args:
      module: the module.
      examples: shapes and dtypes of its inputs.
      method: the name of the method that is called.
      mesh_axes: the mesh's axis by the name of an axis; None if the names are the mesh's own.
    """

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
        """Calls the module.

        Returns:
          Its result, new values by collection, and what it sowed.
        """
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
