"""The public names and where each is; `__init__.py` imports from here what is asked for."""

from .optimizers import adagrad as adagrad
from .optimizers import adam as adam
from .optimizers import adamax as adamax
from .optimizers import momentum as momentum
from .optimizers import nesterov as nesterov
from .optimizers import rmsprop as rmsprop
from .optimizers import rmsprop_momentum as rmsprop_momentum
from .optimizers import sgd as sgd
