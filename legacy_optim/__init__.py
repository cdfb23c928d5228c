# pyright: strict
# ruff: noqa: F403, F405
"""The `flax.optim` of flax 0.5.3 on today's JAX: `import legacy_optim as optim`.

JAX is imported with the first optimizer that is asked for, not with the package: a program may set
`JAX_ENABLE_X64` or `XLA_FLAGS` after `import legacy_optim`, and `legacy_optim.install()` comes
before JAX.
"""

import importlib

from legacy_optim.shim import SUBMODULES
from legacy_optim.shim import install as install
from legacy_optim.shim import uninstall as uninstall

TYPE_CHECKING = False  # `typing` itself would be one more module in a program's process
if TYPE_CHECKING:
    from typing import Any

    from legacy_optim.exports import *

__all__ = [
    "LAMB",
    "LARS",
    "AdaBelief",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "DynamicScale",
    "GradientDescent",
    "ModelParamTraversal",
    "Momentum",
    "MultiOptimizer",
    "Optimizer",
    "OptimizerDef",
    "OptimizerState",
    "RMSProp",
    "Traversal",
    "WeightNorm",
    "install",
    "t_identity",
    "uninstall",
]


def __getattr__(name: str) -> "Any":
    """An optimizer, or a module of the old API, imported when first asked for."""
    if name not in __all__ and name not in (*SUBMODULES, "traverse_util"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    exports = importlib.import_module(f"{__name__}.exports")  # sets the modules' names
    if name in __all__:
        globals()[name] = getattr(exports, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
