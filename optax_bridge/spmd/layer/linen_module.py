"""A module of flax.linen, seen as functions of its variables."""

import inspect
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
from flax.core import unfreeze

from optax_bridge.axis_metadata import boxed_as, unboxed

# Arguments by which modules are told, by convention, whether they are trained; and which say the
# contrary.
_TRAINING = ("train", "training", "is_training")
_NOT_TRAINING = ("deterministic", "use_running_average")


def training_arguments(fn: Any, given: Mapping[str, Any], is_training: bool) -> dict[str, bool]:
    """The arguments that tell a function whether it is for training, where the caller does not."""
    parameters = inspect.signature(fn).parameters
    said = dict.fromkeys(_TRAINING, is_training) | dict.fromkeys(_NOT_TRAINING, not is_training)
    return {name: value for name, value in said.items() if name in parameters and name not in given}


class LinenModule:
    """A module of flax.linen and examples of its inputs."""

    def __init__(self, module: nn.Module, examples: tuple[Any, ...], method: str) -> None:
        self._module = module
        self._method = method
        self._examples = examples

    def _init(self, key: jax.Array, *inputs: Any) -> dict[str, Any]:
        fn = getattr(self._module, self._method)
        told = training_arguments(fn, {}, False)
        variables = self._module.init({"params": key}, *inputs, **told, method=self._method)
        kept = {name: part for name, part in variables.items() if name != "intermediates"}
        return unfreeze(kept)

    def abstract(self) -> dict[str, Any]:
        """The variables by collection, as `ShapeDtypeStruct`s, boxed if they have metadata."""
        return jax.eval_shape(self._init, jax.random.key(0), *self._examples)

    def init(self, key: jax.Array) -> dict[str, Any]:
        """First values of the variables, without boxes."""
        zeros = jax.tree.map(lambda x: jax.numpy.zeros(x.shape, x.dtype), self._examples)
        return unboxed(self._init(key, *zeros))

    def call(
        self,
        variables: dict[str, Any],
        key: jax.Array | None,
        is_training: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Calls the module.

        Returns:
          Its result, new values by collection, and what it sowed.
        """
        fn = getattr(self._module, self._method)
        told = training_arguments(fn, kwargs, is_training)
        outputs, changed = self._module.apply(
            boxed_as(self.abstract(), variables),
            *args,
            rngs=None if key is None else {"params": key},
            mutable=[*(name for name in variables if name != "params"), "intermediates"],
            method=self._method,
            **told,
            **kwargs,
        )
        changed = unfreeze(unboxed(changed))
        return outputs, changed, changed.pop("intermediates", {})
