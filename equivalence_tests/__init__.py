"""Evidence that optimizers train alike: legacy, exact and stock ones, or any two of one's own.

The public names are listed in `__init__.pyi`; a module is imported when a name of it is first used:
the pytest plugin lives in this package and is loaded in every project of an environment, so it must
not import JAX, whose flags that project may yet have to set.
"""

import lazy_loader

from optax_bridge._moved import find_moved

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_MOVED = {
    "adapt": "sides.adapt",
    "command": "check_command",
    "comparison": "compare.comparison",
    "files": "output_files",
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
    "proof.sides": "proof.traced_sides",
    "recording": "report.recording",
    "running": "suite.jobs",
    "sharded": "suite.sharded",
    "sides.training": "sides.digits",
    "suite.running": "suite.jobs",
    "suite.sharded.processes": "suite.sharded.two_processes",
    "training": "sides.digits",
    "trees": "compare.trees",
}
find_moved(__name__, _MOVED)
del find_moved, lazy_loader
