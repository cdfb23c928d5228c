"""The public names and where each is; `__init__.py` imports from here what is asked for."""

from .adabelief import AdaBelief as AdaBelief
from .adadelta import Adadelta as Adadelta
from .adafactor import Adafactor as Adafactor
from .adagrad import Adagrad as Adagrad
from .adam import Adam as Adam
from .base import ModelParamTraversal as ModelParamTraversal
from .base import MultiOptimizer as MultiOptimizer
from .base import Optimizer as Optimizer
from .base import OptimizerDef as OptimizerDef
from .base import OptimizerState as OptimizerState
from .dynamic_scale import DynamicScale as DynamicScale
from .lamb import LAMB as LAMB
from .lars import LARS as LARS
from .momentum import Momentum as Momentum
from .rmsprop import RMSProp as RMSProp
from .sgd import GradientDescent as GradientDescent
from .shim import install as install
from .shim import uninstall as uninstall
from .traverse_util import Traversal as Traversal
from .traverse_util import t_identity as t_identity
from .weight_norm import WeightNorm as WeightNorm

__all__: list[str]
