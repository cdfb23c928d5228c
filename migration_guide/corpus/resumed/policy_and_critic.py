"""Two optimizers in one state; the step of the latest file is read from its name."""
import argparse
import json
import os
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import optim
from flax.training import checkpoints

parser = argparse.ArgumentParser()
parser.add_argument('logdir')
parser.add_argument('total_steps', type=int)
args = parser.parse_args()


@flax.struct.dataclass
class TrainingState:
    """Contains training state for the learner."""
    policy_optimizer: flax.optim.Optimizer
    critic_optimizer: flax.optim.Optimizer
    target_critic_params: Any
    env_steps: int


def init_training_state():
    rng = np.random.RandomState(3)
    policy_params = {'mean': jnp.asarray(rng.normal(size=(3, 1)), jnp.float32), 'log_std': jnp.zeros(1)}
    critic_params = {'hidden': jnp.asarray(rng.normal(size=(4, 6)), jnp.float32), 'out': jnp.full((6,), 0.1)}
    policy_optimizer = optim.Adam(learning_rate=3e-3, beta1=0.5).create(policy_params)
    critic_optimizer = optim.GradientDescent().create(critic_params)
    return TrainingState(policy_optimizer, critic_optimizer, critic_params, 0)


def critic(params, obs, action):
    return jnp.tanh(jnp.concatenate([obs, action], axis=-1) @ params['hidden']) @ params['out']


def policy_loss(policy_params, critic_params, obs, noise):
    action = obs @ policy_params['mean'] + jnp.exp(policy_params['log_std']) * noise
    return -jnp.mean(critic(critic_params, obs, action)) + 0.1 * jnp.mean(action ** 2)


def critic_loss(critic_params, policy_params, target_params, t):
    action = t['next_obs'] @ policy_params['mean']
    target = t['reward'] + 0.95 * critic(target_params, t['next_obs'], action)
    return jnp.mean((critic(critic_params, t['obs'], t['action']) - target) ** 2)


@jax.jit
def update(state, transitions):
    step = state.critic_optimizer.state.step
    lr = jnp.where(step < 2, 0.05, 0.05 * 0.7 ** (step - 1))
    critic_l, critic_grad = jax.value_and_grad(critic_loss)(
        state.critic_optimizer.target, state.policy_optimizer.target,
        state.target_critic_params, transitions)
    critic_optimizer = state.critic_optimizer.apply_gradient(critic_grad, learning_rate=lr)
    policy_l, policy_grad = jax.value_and_grad(policy_loss)(
        state.policy_optimizer.target, critic_optimizer.target,
        transitions['obs'], transitions['noise'])
    policy_optimizer = state.policy_optimizer.apply_gradient(policy_grad)
    new_target = jax.tree_multimap(
        lambda x, y: x * 0.9 + y * 0.1, state.target_critic_params, critic_optimizer.target)
    return TrainingState(
        policy_optimizer=policy_optimizer,
        critic_optimizer=critic_optimizer,
        target_critic_params=new_target,
        env_steps=state.env_steps + 5), (critic_l, policy_l)


def sample(step):
    rng = np.random.RandomState(100 + step)
    shapes = {'obs': (5, 3), 'next_obs': (5, 3), 'action': (5, 1), 'noise': (5, 1), 'reward': (5,)}
    return {k: rng.normal(size=v).astype(np.float32) for k, v in shapes.items()}


training_state = init_training_state()
first = 0
path = checkpoints.latest_checkpoint(args.logdir, prefix='sac_')
if path is not None:
    first = int(os.path.basename(path).split('_')[-1])
    training_state = checkpoints.restore_checkpoint(
        args.logdir, training_state, step=first, prefix='sac_', parallel=False)

losses = []
for step in range(first, args.total_steps):
    training_state, loss = update(training_state, sample(step))
    losses.append([float(x) for x in loss])
    if (step + 1) % 3 == 0:
        checkpoints.save_checkpoint(
            args.logdir, training_state, step=step + 1, prefix='sac_', keep=5)

final = checkpoints.restore_checkpoint(
    args.logdir, init_training_state(), step=args.total_steps, prefix='sac_')
print(json.dumps({
    'losses': losses,
    'mean': np.asarray(final.policy_optimizer.target['mean']).tolist(),
    'critic': np.asarray(final.critic_optimizer.target['hidden']).tolist(),
    'target': np.asarray(final.target_critic_params['out']).tolist(),
    'env_steps': int(final.env_steps),
    'steps': [int(final.policy_optimizer.state.step), int(final.critic_optimizer.state.step)],
}))
