"""Groups by name with an optimizer each, in a state with the step; the embedding is frozen."""
import json
import sys

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import optim
from flax import traverse_util
from flax.training import checkpoints


@flax.struct.dataclass
class State:
    step: int
    optimizer: optim.Optimizer


def init_params():
    rng = np.random.RandomState(11)
    return {
        'embedding': jnp.asarray(rng.normal(size=(6, 3)), jnp.float32),
        'layer_0': {'kernel': jnp.asarray(rng.normal(size=(3, 3)), jnp.float32), 'bias': jnp.zeros(3)},
        'layer_1': {'kernel': jnp.asarray(rng.normal(size=(3, 2)), jnp.float32), 'bias': jnp.zeros(2)},
    }


def create_state():
    kernels = traverse_util.ModelParamTraversal(lambda path, _: 'kernel' in path)
    biases = traverse_util.ModelParamTraversal(lambda path, _: 'bias' in path)
    optimizer_def = optim.MultiOptimizer(
        (kernels, optim.Momentum(learning_rate=0.05, beta=0.8, weight_decay=1e-3)),
        (biases, optim.Adadelta(learning_rate=0.5, rho=0.8)))
    return State(step=0, optimizer=optimizer_def.create(init_params()))


def forward(params, ids):
    x = params['embedding'][ids].mean(axis=1)
    x = jax.nn.softplus(x @ params['layer_0']['kernel'] + params['layer_0']['bias'])
    return x @ params['layer_1']['kernel'] + params['layer_1']['bias']


@jax.jit
def train_step(state, ids, labels):
    def loss_fn(params):
        return jnp.mean((forward(params, ids) - labels) ** 2)
    loss, grad = jax.value_and_grad(loss_fn)(state.optimizer.target)
    return State(step=state.step + 1, optimizer=state.optimizer.apply_gradient(grad)), loss


def main(argv):
    workdir, num_steps = argv[1], int(argv[2])
    state = create_state()
    state = checkpoints.restore_checkpoint(workdir, state, parallel=True)
    losses = []
    while int(state.step) < num_steps:
        rng = np.random.RandomState(int(state.step))
        ids, labels = rng.randint(0, 6, size=(7, 4)), rng.normal(size=(7, 2)).astype(np.float32)
        state, loss = train_step(state, ids, labels)
        losses.append(float(loss))
        if state.step % 3 == 0:
            checkpoints.save_checkpoint(workdir, state, int(state.step), keep=1)
    last = checkpoints.restore_checkpoint(workdir, create_state())
    params = last.optimizer.target
    print(json.dumps({
        'losses': losses,
        'kernel': np.asarray(params['layer_0']['kernel']).tolist(),
        'bias': np.asarray(params['layer_1']['bias']).tolist(),
        'embedding': np.asarray(params['embedding']).tolist(),
        'steps': [int(last.step), int(last.optimizer.state.step)],
    }))


if __name__ == '__main__':
    main(sys.argv)
