"""Evidence that optimizers train alike: legacy, exact and optax ones, or any two others.

The public names are listed in `__init__.pyi`; a module is imported when a name of it is first used:
the pytest plugin lives in this package and is loaded in every project of an environment, so it must
not import JAX, whose flags that project may yet have to set.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader
