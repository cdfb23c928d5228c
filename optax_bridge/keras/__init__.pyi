"""The public names and where each is; `__init__.py` imports from here what is asked for."""

from .optimizers import adadelta as adadelta
from .optimizers import adam as adam
from .optimizers import adamax as adamax
from .optimizers import adamw as adamw
from .optimizers import lion as lion
from .optimizers import rmsprop as rmsprop
from .optimizers import sgd as sgd
