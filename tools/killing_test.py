import jax

from optax_bridge.spmd.examples import regression
from optax_bridge.spmd.progress import read_losses
from tools import killing


def undisturbed(folder, *, devices, mesh_shape, steps, save_every):
    """Losses of the example, as the command with the same fields has them, in this process."""
    cfg = regression.trainer(steps=steps, save_every=save_every, mesh_shape=mesh_shape)
    cfg.set(dir=str(folder)).model.dropout.rate = 0.1
    trainer = cfg.instantiate(parent=None, devices=jax.devices()[:devices])
    losses = {}
    trainer.add_listener(losses.__setitem__)
    trainer.run(jax.random.PRNGKey(0))
    return list(losses.items())


def test_two_processes_and_a_kill(tmp_path):
    """Two processes, killed once, give the losses of one with two devices, to the bit."""
    fields = dict(steps=40, save_every=4)
    expected = undisturbed(tmp_path / "one", devices=2, mesh_shape=(-1, 1), **fields)
    line = killing.command(tmp_path / "two", devices=1, **fields)
    _, moments = killing.train_with_kills(tmp_path / "two", line, processes=2, kills=1, seconds=0.2)
    assert len(moments) == 1
    assert read_losses(tmp_path / "two") == expected
