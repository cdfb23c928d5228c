"""The correspondence: one entry for each legacy optimizer, one file for each entry.

Everything that knows about single optimizers reads it here: `from_legacy`, the suite, checkpoint
conversion, the codemod, the guide's tables, `optax-bridge recipe`. Names are imported when they are
first used, since the optimizers' modules, which define the entries, import this package.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader
