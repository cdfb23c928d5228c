"""A library whose users need not know where its optimizers come from."""
from flax.optim import Adam
from flax.optim import Momentum as SGDMomentum
from flax.optim import MultiOptimizer

from .schedules import warmup
from .traversals import all_but, ending_with

__all__ = ['Adam', 'SGDMomentum', 'MultiOptimizer', 'all_but', 'ending_with', 'warmup']
