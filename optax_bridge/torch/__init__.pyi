"""The public names and where each is; `__init__.py` imports from here what is asked for."""

from .from_torch import from_torch as from_torch
from .from_torch import torch_definition as torch_definition
from .optimizers.adam import Adam as Adam
from .optimizers.adam import adam as adam
from .optimizers.adamw import AdamW as AdamW
from .optimizers.adamw import adamw as adamw
from .optimizers.sgd import SGD as SGD
from .optimizers.sgd import sgd as sgd
