"""The optimizers of Keras 3 on Optax: definitions, transformations, and their entries.

Keras is not needed, and never imported here. Public names are listed in `__init__.pyi`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader
