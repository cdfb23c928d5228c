import jax
import numpy as np
from flax import optim
from flax.training import checkpoints


def loss_fn(params, x, y):
    return jax.numpy.mean((x @ params["kernel"] + params["bias"] - y) ** 2)


@jax.jit
def train_step(optimizer, x, y):
    loss, grad = jax.value_and_grad(loss_fn)(optimizer.target, x, y)
    return optimizer.apply_gradient(grad), loss


def make_optimizer():
    params = {"kernel": np.zeros(3, np.float32), "bias": np.zeros((), np.float32)}
    return optim.Adam(learning_rate=1e-2, weight_decay=1e-3).create(params)


def main():
    x = np.linspace(-1, 1, 192, dtype=np.float32).reshape(64, 3) ** [1, 2, 3]
    y = x @ [1.0, -2.0, 3.0] + 0.5
    optimizer = checkpoints.restore_checkpoint("run", make_optimizer())
    for _ in range(100):
        optimizer, loss = train_step(optimizer, x, y)
    step = int(optimizer.state.step)
    print(f"step {step} loss {loss:.8f}")
    checkpoints.save_checkpoint("run", optimizer, step, keep=5)


if __name__ == "__main__":
    main()
