"""CartPole: an actor and a critic, trained by proximal policy optimization with Adam.

The learning rate and the clipping range fall linearly.
"""
import argparse
import functools
import json
import os

from flax import linen as nn
from flax.training import checkpoints
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax_bridge

jax.config.update("jax_threefry_partitionable", False)

NUM_ITERATIONS = 40
SAVE_EVERY = 20
EVAL_EVERY = 10
NUM_ENVS = 8
NUM_MOVES = 128
NUM_EPOCHS = 4
MINIBATCH_SIZE = 256
UPDATES = NUM_EPOCHS * NUM_ENVS * NUM_MOVES // MINIBATCH_SIZE
DISCOUNT = 0.99
GAE = 0.95
REWARD_SCALE = 0.1
LEARNING_RATE = 3e-3
CLIPPING = 0.2
VALUE_WEIGHT = 0.5
ENTROPY_WEIGHT = 0.01


class ActorCritic(nn.Module):
    @nn.compact
    def __call__(self, x):
        policy = nn.tanh(nn.Dense(32)(x))
        value = nn.tanh(nn.Dense(32)(x))
        return nn.log_softmax(nn.Dense(2)(policy)), nn.Dense(1)(value)[..., 0]


@jax.jit
def policy_action(params, observations, rng):
    log_probs, values = ActorCritic().apply({'params': params}, observations)
    actions = jax.random.categorical(rng, log_probs)
    return actions, jnp.take_along_axis(log_probs, actions[:, None], axis=1)[:, 0], values


def collect(params, envs, iteration, rng):
    """Moves in every environment, which starts anew in each iteration, so that any can be repeated."""
    observations = [env.reset(seed=iteration * NUM_ENVS + i)[0] for i, env in enumerate(envs)]
    steps = []
    for key in np.asarray(jax.random.split(jax.random.fold_in(rng, iteration), NUM_MOVES)):
        now = np.stack(observations)
        actions, log_probs, values = map(np.asarray, policy_action(params, now, key))
        moved = [env.step(int(action)) for env, action in zip(envs, actions)]
        rewards = np.float32([REWARD_SCALE * reward for _, reward, _, _, _ in moved])
        over = np.float32([terminated or truncated for _, _, terminated, truncated, _ in moved])
        steps.append((now, actions, log_probs, values, rewards, over))
        observations = [env.reset()[0] if done else observation
                        for env, done, (observation, _, _, _, _) in zip(envs, over, moved)]
    last_values = np.asarray(policy_action(params, np.stack(observations), rng)[2])
    return [np.stack(parts) for parts in zip(*steps)], last_values


def generalized_advantages(rewards, values, over, last_values):
    advantages, advantage, following = [], np.zeros_like(last_values), last_values
    for reward, value, done in zip(rewards[::-1], values[::-1], over[::-1]):
        delta = reward + DISCOUNT * following * (1.0 - done) - value
        advantage = delta + DISCOUNT * GAE * (1.0 - done) * advantage
        advantages.append(advantage)
        following = value
    return np.stack(advantages[::-1])


def loss_fn(params, minibatch, clipping):
    observations, actions, old_log_probs, returns, advantages = minibatch
    log_probs, values = ActorCritic().apply({'params': params}, observations)
    chosen = jnp.take_along_axis(log_probs, actions[:, None], axis=1)[:, 0]
    ratios = jnp.exp(chosen - old_log_probs)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = jnp.clip(ratios, 1.0 - clipping, 1.0 + clipping)
    policy_loss = -jnp.mean(jnp.minimum(ratios * advantages, clipped * advantages))
    value_loss = jnp.mean(jnp.square(returns - values))
    entropy = -jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, axis=1))
    return policy_loss + VALUE_WEIGHT * value_loss - ENTROPY_WEIGHT * entropy


@functools.partial(jax.jit, donate_argnums=0)
def train_step(optimizer, minibatch):
    remaining = jnp.maximum(1.0 - optimizer.step / (NUM_ITERATIONS * UPDATES), 0.0)
    grad_fn = jax.value_and_grad(loss_fn)
    loss, grad = grad_fn(optimizer.params, minibatch, CLIPPING * remaining)
    optimizer = optimizer.apply_gradients(grads=grad, learning_rate=LEARNING_RATE * remaining)
    return optimizer, loss


def update(optimizer, trajectories, last_values, iteration):
    """Takes all minibatches of an iteration, several times; returns the mean loss as well."""
    observations, actions, log_probs, values, rewards, over = trajectories
    advantages = generalized_advantages(rewards, values, over, last_values)
    batch = [observations, actions, log_probs, advantages + values, advantages]
    batch = [part.reshape((NUM_ENVS * NUM_MOVES,) + part.shape[2:]) for part in batch]
    losses, random = [], np.random.RandomState(iteration)
    for _ in range(NUM_EPOCHS):
        for chosen in random.permutation(NUM_ENVS * NUM_MOVES).reshape((-1, MINIBATCH_SIZE)):
            optimizer, loss = train_step(optimizer, [part[chosen] for part in batch])
            losses.append(float(loss))
    return optimizer, np.mean(losses)


def evaluate(params, num_episodes=5):
    """How long the pole stays up on average if the likelier action is taken, of 500 steps."""
    greedy = jax.jit(lambda x: jnp.argmax(ActorCritic().apply({'params': params}, x)[0]))
    env, lengths = gymnasium.make('CartPole-v1'), []
    for seed in range(num_episodes):
        observation, length, over = env.reset(seed=seed)[0], 0, False
        while not over:
            observation, _, terminated, truncated, _ = env.step(int(greedy(observation)))
            length, over = length + 1, terminated or truncated
        lengths.append(length)
    return np.mean(lengths)


def log(step, **metrics):
    print(json.dumps({'step': step, **{key: float(value) for key, value in metrics.items()}}))


def train_and_evaluate(workdir, num_iterations):
    envs = [gymnasium.make('CartPole-v1') for _ in range(NUM_ENVS)]
    ckpt_dir = os.path.abspath(workdir)
    rng, init_rng = jax.random.split(jax.random.PRNGKey(0))
    params = ActorCritic().init(init_rng, jnp.ones((1, 4)))['params']
    optimizer = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=optax_bridge.adam(learning_rate=LEARNING_RATE))
    optimizer = optax_bridge.checkpoints.restore_checkpoint(ckpt_dir, optimizer)
    for iteration in range(int(optimizer.step) // UPDATES + 1, num_iterations + 1):
        trajectories, last_values = collect(optimizer.params, envs, iteration, rng)
        optimizer, loss = update(optimizer, trajectories, last_values, iteration)
        log(iteration, loss=loss)
        if iteration % EVAL_EVERY == 0:
            log(iteration, eval_return=evaluate(optimizer.params))
        if iteration % SAVE_EVERY == 0 or iteration == num_iterations:
            checkpoints.save_checkpoint(ckpt_dir, optimizer, iteration, keep=2)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--workdir', required=True)
    parser.add_argument('--num_steps', type=int, default=NUM_ITERATIONS)
    args = parser.parse_args()
    train_and_evaluate(args.workdir, args.num_steps)
