"""Legacy `flax.optim` optimizers on Optax, with the training unchanged.

The public names are listed in `__init__.pyi`; a module is imported when a name of it is first used.
"""

import lazy_loader

from optax_bridge._moved import NAMES, find_moved

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
find_moved(__name__, NAMES)
del NAMES, find_moved, lazy_loader
