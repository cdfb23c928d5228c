"""Soft actor-critic: three optimizers in one state, one of a scalar; updates in a scan."""
import json
from typing import Any, NamedTuple, Tuple

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import optim

TARGET_ENTROPY = -1.0


class Transition(NamedTuple):
    obs: jnp.ndarray
    action: jnp.ndarray
    reward: jnp.ndarray
    next_obs: jnp.ndarray
    noise: jnp.ndarray


@flax.struct.dataclass
class TrainingState:
    """Contains training state for the learner."""
    policy_optimizer: optim.Optimizer
    critic_optimizer: optim.Optimizer
    alpha_optimizer: optim.Optimizer
    target_critic: Any
    steps: jnp.ndarray


def policy(params, obs, noise):
    mean = jnp.tanh(obs @ params['mean'])
    log_std = jnp.clip(obs @ params['log_std'], -2.0, 1.0)
    action = mean + jnp.exp(log_std) * noise
    log_prob = -0.5 * noise ** 2 - log_std - 0.9189385
    return action, jnp.sum(log_prob, axis=-1)


def critic(params, obs, action):
    x = jnp.concatenate([obs, action], axis=-1)
    return [jnp.tanh(x @ q['w']) @ q['v'] for q in params]


def alpha_loss(log_alpha, policy_params, t):
    _, log_prob = policy(policy_params, t.obs, t.noise)
    return jnp.mean(-jnp.exp(log_alpha) * jax.lax.stop_gradient(log_prob + TARGET_ENTROPY))


def critic_loss(params, policy_params, target, alpha, t):
    action, log_prob = policy(policy_params, t.next_obs, t.noise)
    q1, q2 = critic(target, t.next_obs, action)
    backup = t.reward + 0.9 * (jnp.minimum(q1, q2) - alpha * log_prob)
    backup = jax.lax.stop_gradient(backup)
    return sum(jnp.mean((q - backup) ** 2) for q in critic(params, t.obs, t.action))


def actor_loss(params, critic_params, alpha, t):
    action, log_prob = policy(params, t.obs, t.noise)
    q1, q2 = critic(critic_params, t.obs, action)
    return jnp.mean(alpha * log_prob - jnp.minimum(q1, q2))


def update_step(state: TrainingState, t: Transition) -> Tuple[TrainingState, dict]:
    alpha = jnp.exp(state.alpha_optimizer.target)
    a_loss, alpha_grad = jax.value_and_grad(alpha_loss)(
        state.alpha_optimizer.target, state.policy_optimizer.target, t)
    c_loss, critic_grad = jax.value_and_grad(critic_loss)(
        state.critic_optimizer.target, state.policy_optimizer.target, state.target_critic, alpha, t)
    p_loss, policy_grad = jax.value_and_grad(actor_loss)(
        state.policy_optimizer.target, state.critic_optimizer.target, alpha, t)
    policy_optimizer = state.policy_optimizer.apply_gradient(policy_grad)
    critic_optimizer = state.critic_optimizer.apply_gradient(critic_grad)
    alpha_optimizer = state.alpha_optimizer.apply_gradient(alpha_grad)
    new_target = jax.tree_multimap(
        lambda x, y: x * (1 - 0.05) + y * 0.05, state.target_critic, critic_optimizer.target)
    new_state = TrainingState(
        policy_optimizer=policy_optimizer, critic_optimizer=critic_optimizer,
        alpha_optimizer=alpha_optimizer, target_critic=new_target, steps=state.steps + 1)
    return new_state, {'critic': c_loss, 'actor': p_loss, 'alpha': a_loss}


@jax.jit
def run_one_epoch(state, transitions):
    return jax.lax.scan(update_step, state, transitions)


rng = np.random.RandomState(0)
array = lambda *shape: rng.normal(size=shape).astype(np.float32)
critic_params = [{'w': array(3, 4), 'v': array(4)} for _ in range(2)]
log_alpha = jnp.asarray(0.0, dtype=jnp.float32)
state = TrainingState(
    policy_optimizer=optim.Adam(learning_rate=3e-3).create(
        {'mean': jnp.asarray(array(2, 1)), 'log_std': jnp.zeros((2, 1))}),
    critic_optimizer=optim.Adam(learning_rate=1e-2).create(jax.tree_map(jnp.asarray, critic_params)),
    alpha_optimizer=optim.Adam(learning_rate=3e-3).create(log_alpha),
    target_critic=jax.tree_map(jnp.asarray, critic_params),
    steps=jnp.zeros((), jnp.int32))
history = []
for epoch in range(2):
    batch = Transition(array(3, 5, 2), array(3, 5, 1), array(3, 5), array(3, 5, 2), array(3, 5, 1))
    state, metrics = run_one_epoch(state, batch)
    history.append({k: np.asarray(v).tolist() for k, v in metrics.items()})
print(json.dumps({
    'history': history,
    'log_alpha': float(state.alpha_optimizer.target),
    'mean': np.asarray(state.policy_optimizer.target['mean']).tolist(),
    'critic': np.asarray(state.critic_optimizer.target[1]['v']).tolist(),
    'target': np.asarray(state.target_critic[0]['v']).tolist(),
    'steps': [int(state.steps), int(state.alpha_optimizer.state.step)],
}))
