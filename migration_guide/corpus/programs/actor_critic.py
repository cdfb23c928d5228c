"""Several optimizers in one state, as in Brax: policy, value and a scalar temperature."""
import json

import flax
import jax
import jax.numpy as jnp
from flax import optim


@flax.struct.dataclass
class TrainingState:
    policy_optimizer: flax.optim.Optimizer
    value_optimizer: flax.optim.Optimizer
    alpha_optimizer: flax.optim.Optimizer
    target_q_params: dict


observation = jnp.linspace(-0.3, 1, 8)
policy_optimizer = optim.Adam(learning_rate=3e-2).create({'policy': jnp.ones(8) * 0.1})
value_optimizer = optim.Adam(learning_rate=1e-2, eps=1e-5).create(jnp.zeros(8))
alpha_optimizer = flax.optim.Adam(learning_rate=3e-3).create(jnp.asarray(0.5))
state = TrainingState(policy_optimizer, value_optimizer, alpha_optimizer, {'q': jnp.zeros(8)})


@jax.jit
def update(state):
    policy_loss, policy_grad = jax.value_and_grad(
        lambda p: jnp.sum(jnp.tanh(p['policy'] * observation)))(state.policy_optimizer.target)
    value_grad = jax.grad(lambda v: jnp.sum((v * observation - 1) ** 2))(state.value_optimizer.target)
    alpha_grad = jax.grad(lambda a: jnp.exp(a) * policy_loss)(state.alpha_optimizer.target)
    policy_optimizer = state.policy_optimizer.apply_gradient(policy_grad)
    value_optimizer = state.value_optimizer.apply_gradient(value_grad)
    target = jax.tree_map(lambda t, v: 0.9 * t + 0.1 * v, state.target_q_params, {'q': value_optimizer.target})
    return state.replace(
        policy_optimizer=policy_optimizer,
        value_optimizer=value_optimizer,
        alpha_optimizer=state.alpha_optimizer.apply_gradient(alpha_grad),
        target_q_params=target)


for _ in range(4):
    state = update(state)
print(json.dumps({'policy': state.policy_optimizer.target['policy'].tolist(),
                  'value': state.value_optimizer.target.tolist(),
                  'alpha': float(state.alpha_optimizer.target), 'q': state.target_q_params['q'].tolist()}))
