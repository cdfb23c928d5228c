"""Every name of `legacy_optim` that needs JAX; the package imports them when one is asked for."""

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
