"""The optimizers of `jax.example_libraries.optimizers` on Optax, computed by JAX's own functions.

`jax.experimental.optimizers` is their old name. Public names are listed in `__init__.pyi`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader
