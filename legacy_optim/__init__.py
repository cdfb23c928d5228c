# pyright: strict
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

    from legacy_optim.adabelief import AdaBelief as AdaBelief
    from legacy_optim.adadelta import Adadelta as Adadelta
    from legacy_optim.adafactor import Adafactor as Adafactor
    from legacy_optim.adagrad import Adagrad as Adagrad
    from legacy_optim.adam import Adam as Adam
    from legacy_optim.base import ModelParamTraversal as ModelParamTraversal
    from legacy_optim.base import MultiOptimizer as MultiOptimizer
    from legacy_optim.base import Optimizer as Optimizer
    from legacy_optim.base import OptimizerDef as OptimizerDef
    from legacy_optim.base import OptimizerState as OptimizerState
    from legacy_optim.dynamic_scale import DynamicScale as DynamicScale
    from legacy_optim.lamb import LAMB as LAMB
    from legacy_optim.lars import LARS as LARS
    from legacy_optim.momentum import Momentum as Momentum
    from legacy_optim.rmsprop import RMSProp as RMSProp
    from legacy_optim.sgd import GradientDescent as GradientDescent
    from legacy_optim.traverse_util import Traversal as Traversal
    from legacy_optim.traverse_util import t_identity as t_identity
    from legacy_optim.weight_norm import WeightNorm as WeightNorm

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
