"""The optimizers of `jax.example_libraries.optimizers` as definitions, which call JAX's own.

JAX's functions take and return a state that holds the parameters as well. Nothing of their
arithmetic is repeated here. It is what `jax.experimental.optimizers` had, but for Adam and Adamax
up to JAX 0.2.5, whose bias correction was not in the parameters' dtype.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.example_libraries.optimizers as example_libraries

from optax_bridge.exact.ported import PortedOptimizer


@dataclasses.dataclass(eq=False)
class JaxOptimizer(PortedOptimizer):
    """An optimizer of `jax.example_libraries.optimizers`, a dataclass of its arguments.

    Attributes:
      MAKE: JAX's function, which makes `init`, `update` and `get_params` of these arguments.
    """

    ORIGIN: ClassVar = "jax.example_libraries.optimizers"
    STATE: ClassVar = "Jax"
    MAKE: ClassVar[Callable[..., example_libraries.Optimizer]]

    def new_values(
        self, hyper_params: Any, count: Any, grad: Any, param: Any, fields: Mapping[str, Any]
    ) -> tuple[jax.Array, Mapping[str, jax.Array | None]]:
        triple = type(self).MAKE(**vars(hyper_params))
        packed = [[param, *(fields[name] for name in self.FIELDS)]]
        state = jax.eval_shape(triple.init_fn, param)._replace(packed_state=packed)
        ((new_param, *new),) = triple.update_fn(count, grad, state).packed_state
        return new_param, dict(zip(self.FIELDS, new, strict=True))


def _definition(name: str, *fields: str) -> type[JaxOptimizer]:
    """The definition of one of JAX's optimizers, by the fields of its state after the parameter."""
    make = getattr(example_libraries, name)
    arguments = [
        (parameter.name, Any, dataclasses.field(default=parameter.default))
        if parameter.default is not parameter.empty
        else (parameter.name, Any)
        for parameter in inspect.signature(make).parameters.values()
    ]
    namespace = {
        "FIELDS": fields,
        "MAKE": staticmethod(make),
        "__doc__": "Its arguments are JAX's; a `step_size` of None means that every call gives it.",
    }
    definition = dataclasses.make_dataclass(
        name, arguments, bases=(JaxOptimizer,), namespace=namespace, eq=False
    )
    definition.__module__ = __name__
    return definition


sgd = _definition("sgd")
momentum = _definition("momentum", "velocity")
nesterov = _definition("nesterov", "velocity")
adagrad = _definition("adagrad", "g_sq", "m")
rmsprop = _definition("rmsprop", "avg_sq_grad")
rmsprop_momentum = _definition("rmsprop_momentum", "avg_sq_grad", "mom")
adam = _definition("adam", "m", "v")
adamax = _definition("adamax", "m", "u")
