"""Dataclasses within dataclasses: an experiment has a learner, a learner has an optimizer.

Written to one file with to_bytes, which is replaced when it is whole.
"""
import json
import os
import sys
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import optim
from flax.serialization import from_bytes, to_bytes


@flax.struct.dataclass
class Statistics:
    count: int
    best_loss: float
    mean: Any


@flax.struct.dataclass
class LearnerState:
    optimizer: optim.Optimizer
    target_params: Any
    rng: Any


@flax.struct.dataclass
class Experiment:
    learner: LearnerState
    statistics: Statistics
    epoch: int = 0


def q_values(params, x):
    return jnp.tanh(x @ params['torso']['w'] + params['torso']['b']) @ params['head']['w']


def make_experiment(seed):
    rng = np.random.RandomState(seed)
    params = {
        'torso': {'w': jnp.asarray(rng.normal(size=(3, 4)), jnp.float32), 'b': jnp.zeros(4)},
        'head': {'w': jnp.asarray(rng.normal(size=(4, 2)), jnp.float32)},
    }
    optimizer = optim.RMSProp(learning_rate=5e-3, beta2=0.95, centered=True).create(params)
    learner = LearnerState(optimizer, params, jax.random.PRNGKey(seed))
    return Experiment(learner, Statistics(count=0, best_loss=np.inf, mean=jnp.zeros(3)))


@jax.jit
def update(learner, batch):
    def loss_fn(params):
        q = q_values(params, batch['x'])
        bootstrap = batch['r'] + 0.9 * jnp.max(q_values(learner.target_params, batch['y']), axis=-1)
        return jnp.mean((q[:, 0] - jax.lax.stop_gradient(bootstrap)) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(learner.optimizer.target)
    optimizer = learner.optimizer.apply_gradient(grads)
    target_params = jax.tree_multimap(
        lambda t, p: 0.8 * t + 0.2 * p, learner.target_params, optimizer.target)
    return learner.replace(optimizer=optimizer, target_params=target_params), loss


def save(path, experiment):
    with open(path + '.tmp', 'wb') as f:
        f.write(to_bytes(experiment))
    os.replace(path + '.tmp', path)


def load(path, experiment):
    with open(path, 'rb') as f:
        return from_bytes(experiment, f.read())


def main():
    path = os.path.join(sys.argv[1], 'experiment.flax')
    experiment = make_experiment(0)
    if os.path.exists(path):
        experiment = load(path, experiment)
    losses = []
    while experiment.learner.optimizer.state.step < int(sys.argv[2]):
        step = int(experiment.learner.optimizer.state.step)
        rng = np.random.RandomState(step)
        batch = {k: rng.normal(size=(6, 3)).astype(np.float32) for k in 'xy'}
        batch['r'] = rng.uniform(size=6).astype(np.float32)
        learner, loss = update(experiment.learner, batch)
        statistics = experiment.statistics
        statistics = statistics.replace(
            count=statistics.count + 6,
            best_loss=min(statistics.best_loss, float(loss)),
            mean=0.9 * statistics.mean + 0.1 * batch['x'].mean(axis=0))
        experiment = experiment.replace(learner=learner, statistics=statistics)
        losses.append(float(loss))
        if (step + 1) % 3 == 0:
            experiment = experiment.replace(epoch=experiment.epoch + 1)
            save(path, experiment)

    saved = load(path, make_experiment(1))
    print(json.dumps({
        'losses': losses,
        'head': np.asarray(saved.learner.optimizer.target['head']['w']).tolist(),
        'target': np.asarray(saved.learner.target_params['head']['w']).tolist(),
        'mean': np.asarray(saved.statistics.mean).tolist(),
        'count': int(saved.statistics.count),
        'best': float(saved.statistics.best_loss),
        'epoch': int(saved.epoch),
        'rng': np.asarray(saved.learner.rng).tolist(),
    }))


if __name__ == '__main__':
    main()
