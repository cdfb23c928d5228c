"""Checkpoints: those that `flax.optim` wrote come along, with moments and step, and go back.

The public names are listed in `__init__.pyi`; a module is imported when a name of it is first used.
"""

import lazy_loader

import optax_bridge

_listed, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader


def __getattr__(name: str) -> object:
    if name == "convert_state":  # it makes a TrainState, whose module builds on this package
        return optax_bridge.convert_state
    if name in __all__ or name.startswith("_"):
        return _listed(name)
    message = f"module 'optax_bridge.checkpoints' has no attribute {name!r}"
    if name in dir(optax_bridge):
        message += f"; is optax_bridge.{name} meant?"
    raise AttributeError(message, name=name)
