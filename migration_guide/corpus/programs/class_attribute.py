"""An optimizer that is a class attribute, and definitions of the program's own, one derived from the other."""
import json
import jax, jax.numpy as jnp, numpy as np
from flax import struct
from flax.optim.base import OptimizerDef
from flax.optim import OptimizerState
import flax.optim as fo


@struct.dataclass
class _LionHyper:
  learning_rate: float
  b1: float
  b2: float


@struct.dataclass
class _LionState:
  m: np.ndarray


class Lion(OptimizerDef):
  """Own optimizer."""

  def __init__(self, learning_rate=None, b1=0.9, b2=0.99):
    super().__init__(_LionHyper(learning_rate, b1, b2))

  def init_param_state(self, param):
    return _LionState(jnp.zeros_like(param))

  def apply_param_gradient(self, step, hyper_params, param, state, grad):
    u = jnp.sign(hyper_params.b1 * state.m + (1 - hyper_params.b1) * grad)
    m = hyper_params.b2 * state.m + (1 - hyper_params.b2) * grad
    lr = hyper_params.learning_rate / jnp.sqrt(1.0 + step)
    return param - lr * u, _LionState(m)


class SlowLion(Lion):
  def apply_param_gradient(self, step, hyper_params, param, state, grad):
    p, s = super().apply_param_gradient(step, hyper_params, param, state, grad)
    return 0.5 * (p + param), s


class Runner:
  OPT = fo.Adagrad(learning_rate=0.1, eps=1e-6)

  def __init__(self, d):
    self.opts = {'main': d.create({'w': jnp.linspace(-1, 1, 5)}), 'aux': self.OPT.create({'w': jnp.ones(2)})}

  def __call__(self, n):
    for i in range(n):
      for name in sorted(self.opts):
        o = self.opts[name]
        g = jax.grad(lambda p: jnp.sum((p['w'] - .3) ** 4))(o.target)
        self.opts[name] = o.apply_gradient(g, learning_rate=0.2) if name == 'main' else o.apply_gradient(g)
    return {k: v.target['w'].tolist() for k, v in self.opts.items()}, {k: int(v.state.step) for k, v in self.opts.items()}


print(json.dumps([Runner(d)(4) for d in (Lion(0.05), SlowLion(learning_rate=0.05, b2=0.5))]))
