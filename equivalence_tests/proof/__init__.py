"""Proofs that two optimizers are the same for all inputs, and certificates of them.

The public names are listed in `__init__.pyi`; a module is imported when a name of it is first used.
"""

import lazy_loader

from optax_bridge.installed import require

require("prove", __name__)
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader, require
