"""Legacy `flax.optim` optimizers on Optax, with the training unchanged.

The public names are listed in `__init__.pyi`; a module is imported when a name of it is first used.
"""

from typing import Any

import lazy_loader

_lookup, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _lookup(name)
    except AttributeError:
        if name in __all__ or name.startswith("_"):
            raise
        from optax_bridge._text import nearest  # where it is needed alone

        near = nearest(name, __all__)
        meant = f"; is optax_bridge.{near} meant?" if near else ""
        message = f"module 'optax_bridge' has no attribute {name!r}{meant}"
        raise AttributeError(message, name=name) from None


del lazy_loader
