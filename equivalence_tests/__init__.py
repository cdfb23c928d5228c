"""Evidence that optimizers train alike: legacy, exact and stock ones, or any two of one's own.

The public names are listed in `__init__.pyi`; a module is imported when a name of it is first used:
the pytest plugin lives in this package and is loaded in every project of an environment, so it must
not import JAX, whose flags that project may yet have to set.
"""

import lazy_loader

from optax_bridge._moved import find_moved

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
find_moved(
    __name__,
    {
        "adapt": "sides.adapt",
        "comparison": "compare.comparison",
        "gradients": "sides.gradients",
        "html_report": "report.html",
        "junit": "report.junit",
        "matrix": "suite.matrix",
        "nature": "compare.nature",
        "pair_report": "report.pair",
        "plot": "report.plot",
        "precision": "sides.precision",
        "problems": "sides.problems",
        "processes": "suite.processes",
        "recording": "report.recording",
        "running": "suite.running",
        "sharded": "suite.sharded",
        "training": "sides.training",
        "trees": "compare.trees",
    },
)
del find_moved, lazy_loader
