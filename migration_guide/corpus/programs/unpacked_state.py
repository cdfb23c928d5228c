"""A named tuple that is taken apart; gradients are summed up under lax.cond; the rate comes with the config."""
import dataclasses, functools, json
from typing import Any, Callable, NamedTuple, Optional
import jax, jax.numpy as jnp, numpy as np
import flax
from flax import optim
from flax.training import train_state as _unused


class Learner(NamedTuple):
  optimizer: flax.optim.Optimizer
  accum: Any
  count: Any


@dataclasses.dataclass
class Config:
  lr: float = 0.1
  optimizer_def: flax.optim.OptimizerDef = None
  schedule: Optional[Callable] = None


def poly(step, lr):
  return lr * (1 - step / 20.0) ** 2


def init(cfg, params):
  return Learner(cfg.optimizer_def.create(params), jax.tree_map(jnp.zeros_like, params), jnp.zeros((), jnp.int32))


def apply_fn(opt, g, lr):
  return opt.apply_gradient(g, learning_rate=lr)


def update(learner, x, cfg):
  g = jax.grad(lambda p: jnp.mean((p['w'] @ x - 1.) ** 2))(learner.optimizer.target)
  accum = jax.tree_multimap(jnp.add, learner.accum, g)
  count = learner.count + 1

  def do(l):
    lr = cfg.schedule(l.optimizer.state.step, cfg.lr)
    mean = jax.tree_map(lambda a: a / 2, accum)
    return Learner(apply_fn(l.optimizer, mean, lr), jax.tree_map(jnp.zeros_like, accum), jnp.zeros_like(count))

  def dont(l):
    return l._replace(accum=accum, count=count)

  return jax.lax.cond(count >= 2, do, dont, learner)


cfg = Config(optimizer_def=optim.Adam(beta1=0.9, beta2=0.98, eps=1e-9), schedule=poly)
learner = init(cfg, {'w': jnp.linspace(0, 1, 6).reshape(2, 3)})
step = jax.jit(functools.partial(update, cfg=cfg))
for i in range(7):
  learner = step(learner, jnp.array([1., .5, -1.]) * (i + 1) / 3)
optimizer, accum, count = learner
print(json.dumps({'w': np.asarray(optimizer.target['w']).tolist(), 'n': int(optimizer.state.step), 'acc': np.asarray(accum['w']).tolist(), 'c': int(count)}))
