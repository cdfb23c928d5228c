"""A model that carries its optimizer; the argument is a definition first, then an optimizer."""
import json
from typing import Any, Callable, Optional

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax.optim import Adam, GradientDescent


@flax.struct.dataclass
class Model:
    apply_fn: Callable = flax.struct.field(pytree_node=False)
    params: Any = None
    optimizer: Optional[flax.optim.Optimizer] = None

    @classmethod
    def create(cls, apply_fn, params, optimizer=None):
        if optimizer is not None:
            optimizer = optimizer.create(params)
        return cls(apply_fn=apply_fn, params=params, optimizer=optimizer)

    def __call__(self, x):
        return self.apply_fn(self.params, x)

    def take_step(self, loss_fn):
        (loss, info), grads = jax.value_and_grad(loss_fn, has_aux=True)(self.params)
        optimizer = self.optimizer.apply_gradient(grads)
        return self.replace(optimizer=optimizer, params=optimizer.target), info


def linear(params, x):
    return params['w'] * x


class Learner:
    def __init__(self):
        self.actor = Model.create(linear, {'w': jnp.ones(2)}, optimizer=Adam(learning_rate=0.1))
        self.critic = Model.create(linear, {'w': -jnp.ones(2)}, GradientDescent(0.05))
        self.target = Model.create(linear, self.critic.params)

    def update(self, x):
        def critic_loss(params):
            loss = jnp.mean((linear(params, x) - self.target(x) - 1.0) ** 2)
            return loss, {'critic_loss': loss}

        def actor_loss(params):
            loss = jnp.mean(linear(params, x) * self.critic(x))
            return loss, {'actor_loss': loss}

        self.critic, info = self.critic.take_step(critic_loss)
        self.actor, more = self.actor.take_step(actor_loss)
        blended = jax.tree_multimap(
            lambda a, b: 0.1 * a + 0.9 * b, self.critic.params, self.target.params)
        self.target = self.target.replace(params=blended)
        return {**info, **more}


learner = Learner()
for _ in range(4):
    info = learner.update(jnp.array([0.5, -1.5]))
print(json.dumps({
    'actor': np.asarray(learner.actor.params['w']).tolist(),
    'critic': np.asarray(learner.critic.params['w']).tolist(),
    'target': np.asarray(learner.target.params['w']).tolist(),
    'loss': float(info['critic_loss']),
}))
