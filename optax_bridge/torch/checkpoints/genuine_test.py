"""Genuine trainings of PyTorch move to Flax and back, and their files are read."""

import functools
import io
import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization

import optax_bridge
from optax_bridge import CheckpointError, FullTrainState
from optax_bridge.checkpoints.convert import convert_file
from optax_bridge.checkpoints.formats.pytorch import as_tensor
from optax_bridge.checkpoints.read import read_checkpoint
from optax_bridge.checkpoints.restore import restore_checkpoint
from optax_bridge.recorded_test import refused
from optax_bridge.torch.checkpoints.files import moved_to_flax, to_torch_file
from optax_bridge.torch.checkpoints.moves_test import NAMES, template

torch = pytest.importorskip("torch")
nn = torch.nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.bn = nn.Linear(3, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.bn(self.fc(x))


def take_steps(model, optimizer, count=3):
    for number in range(count):
        optimizer.zero_grad()
        x = torch.from_numpy(np.random.default_rng(number).normal(size=(5, 3)).astype(np.float32))
        (model(x) * torch.arange(4)).square().mean().backward()
        optimizer.step()


def trained(make=lambda p: torch.optim.AdamW(p, lr=0.01), count=3) -> Any:
    """A model and its optimizer after some steps; its first weight alone decays."""
    torch.manual_seed(0)
    model = Net()
    weight, *others = model.parameters()
    groups = [{"params": [weight], "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = make(groups)
    take_steps(model, optimizer, count)
    return model, optimizer


def saved_of(model: Any, optimizer: Any) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


@pytest.mark.parametrize(
    ("name", "settings"),
    [("AdamW", {}), ("NAdam", {}), ("SGD", {"momentum": 0.9}), ("SGD", {}), ("Adagrad", {})],
)
def test_everything_arrives_and_goes_back_to_the_bit(
    name: str, settings: Any, tmp_path: Path
) -> None:
    """NAdam has a number for each parameter, SGD without momentum nothing."""
    old, new, base_file, back_file = map(tmp_path.joinpath, ("a.pt", "new", "base.pt", "back.pt"))
    make = functools.partial(getattr(torch.optim, name), lr=0.01, **settings)
    like = template(getattr(optax_bridge.torch, name.lower())(lr=0.01, **settings))
    saved, base = ({**saved_of(*trained(make, count)), "epoch": count} for count in (3, 1))
    torch.save(saved, old)
    torch.save(base, base_file)
    take = functools.partial(moved_to_flax, names=NAMES, step=3)
    options: Any = {"like": like, "names": NAMES, "base": base_file}
    with pytest.warns(optax_bridge.LeftOverWarning, match="epoch"):
        convert_file(old, new, like=like, moved=take)
        done = to_torch_file(new, back_file, **options)
    with refused(CheckpointError, "nothing at the destination, found a file"):
        to_torch_file(new, back_file, **options)
    with refused(CheckpointError, r"a file that torch\.save wrote, found Orbax"):
        to_torch_file(new, tmp_path / "x.pt", **{**options, "base": new})
    assert (done.entries, done.tensors) == ({"epoch": 1}, ["bn.num_batches_tracked"])
    state: Any = restore_checkpoint(new, like)
    back = torch.load(back_file, weights_only=True)
    np.testing.assert_array_equal(state.params["fc"]["kernel"], saved["model"]["fc.weight"].T)
    assert (int(state.step), int(state.opt_state.count), back["epoch"], done.step) == (3, 3, 1, 3)
    saved["model"]["bn.num_batches_tracked"] = base["model"]["bn.num_batches_tracked"]
    saved["epoch"] = base["epoch"]
    (expected, structure), (actual, same) = map(jax.tree.flatten, (saved, back))
    assert same == structure
    for one, other in zip(actual, expected, strict=True):
        is_tensor = torch.is_tensor(other)
        assert not is_tensor or (one.shape, one.dtype) == (other.shape, other.dtype)
        assert torch.equal(one, other) if is_tensor else one == other


class Code:
    def __reduce__(self):
        return print, ("ran",)


def bytes_of(value: Any) -> bytes:
    torch.save(value, file := io.BytesIO())
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (lambda: bytes_of({"model": Code()}), r"code: .*print.*state_dict\(\)"),
        (lambda: pickle.dumps({"model": 1}), "pickle"),
        (lambda: bytes_of(saved_of(*trained()))[:-1], r"a file that torch\.save wrote"),
        (lambda: bytes_of({"w": torch.ones(1).expand(2**20)}), "contiguous"),
        (lambda: bytes_of(torch.ones(2)), "a tree of names and arrays"),
    ],
)
def test_damaged_files_and_files_with_code_are_refused(data, expected, tmp_path):
    (tmp_path / "a.pt").write_bytes(data())
    with refused(CheckpointError, expected):
        read_checkpoint(tmp_path / "a.pt")


def test_safetensors_and_bfloat16_are_read(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {"w": torch.arange(3.0).to(torch.bfloat16), "n": torch.tensor(3)}
    safetensors.save_file(tensors, tmp_path / "a.safetensors")
    torch.save(tensors, tmp_path / "a.pt")
    for name in ("a.safetensors", "a.pt"):
        tree = read_checkpoint(tmp_path / name).tree
        assert (tree["w"].dtype, tree["w"].tolist(), tree["n"]) == (jnp.bfloat16, [0, 1, 2], 3)
        assert torch.equal(as_tensor(tree["w"]), tensors["w"])
    folder = tmp_path / "checkpoint-7"  # of Hugging Face's Trainer
    folder.mkdir()
    for name, value in {"optimizer": tensors, "scheduler": {"last_epoch": 7}}.items():
        torch.save(value, folder / f"{name}.pt")
    torch.save(tensors, folder / "pytorch_model.bin")
    tree = read_checkpoint(folder).tree
    assert set(tree) == {"model", "optimizer", "scheduler"}
    assert (tree["model"]["n"], tree["scheduler"]) == (3, {"last_epoch": 7})
    data = (tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "a.safetensors").write_bytes(data[:-1])
    with refused(CheckpointError, "cut short"):
        read_checkpoint(tmp_path / "a.safetensors")


@pytest.mark.parametrize("wrapper", [lambda model: model, torch.nn.DataParallel])
def test_a_training_in_memory_goes_on_as_pytorch_does(wrapper):
    from_torch = functools.partial(FullTrainState.from_torch, names=NAMES)
    model, optimizer = trained()
    state = from_torch(optimizer, params=wrapper(model))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for _ in range(3):
        state = state.apply_gradients(grads=jax.tree.map(jnp.ones_like, state.params))
        optimizer.step()
    kernel = model.fc.weight.detach().numpy().T
    np.testing.assert_array_equal(state.params["fc"]["kernel"], kernel)  # which alone decays
    np.testing.assert_array_equal(state.params["bn"]["scale"], model.bn.weight.detach())
    np.testing.assert_array_equal(state.batch_stats["bn"]["mean"], model.bn.running_mean)
    assert int(state.step) == 6

    sgd_model, sgd = trained(lambda p: torch.optim.SGD(p, lr=0.1))  # which has no state
    assert from_torch(sgd, params=sgd_model, step=3).step == 3
    new_model, new = trained(count=0)
    assert from_torch(new, params=new_model, batch_stats=None).batch_stats is None
    state = from_torch(new, params=new_model)
    assert int(state.step) == 0
    before = np.array(state.params["fc"]["kernel"])
    take_steps(new_model, new)
    np.testing.assert_array_equal(state.params["fc"]["kernel"], before)
    public = from_torch(optimizer, params=model, exact=False).opt_state
    assert "ScaleByAdamState" in str(public) and "TorchAdamW" not in str(public)
    one_missing = {**new_model.state_dict(), "fc.bias": torch.zeros(4)}
    with refused(CheckpointError, r"found 1 parameters of another.*the very module"):
        from_torch(new, params=one_missing)


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_tied_tensor_goes_back_with_the_first_or_on_its_own(is_listed, tmp_path):
    params = {"a": jnp.arange(9.0).reshape(3, 3)}
    names: Any = {"drop": ["1.weight"], "names": {"0.weight": "params/a"}}
    if is_listed:
        names = {"names": {"0.weight": "params/a", "1.weight": "params/b"}}
        params["b"] = -params["a"]
    new, base, back = (tmp_path / name for name in ("new", "base.pt", "back.pt"))
    like = FullTrainState.create(apply_fn=None, params=params, tx=optax.sgd(0.1))
    new.write_bytes(serialization.to_bytes(like))
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    tied[1].weight = tied[0].weight
    torch.save({"model": tied.state_dict()}, base)
    assert to_torch_file(new, back, like=like, names=names, base=base).tensors == []
    ill = {**params, "a": params["a"] * jnp.nan}
    new.write_bytes(serialization.to_bytes(like.replace(params=ill)))
    with refused(CheckpointError, r"\['a'\]: expected finite numbers"):
        to_torch_file(new, tmp_path / "ill", like=like, names=names, base=base)
    weights = torch.load(back, weights_only=True)["model"]
    np.testing.assert_array_equal(weights["0.weight"], params["a"])
    np.testing.assert_array_equal(weights["1.weight"], params["b" if is_listed else "a"])
    optimizer = torch.optim.SGD(tied.parameters())  # which has the first of the two names
    take = functools.partial(FullTrainState.from_torch, optimizer, params=tied, step=1)
    if is_listed:
        with refused(CheckpointError, r"tied tensor, found 1\.weight"):
            take(names=names)
    else:
        np.testing.assert_array_equal(take(names=names).params["a"], tied[0].weight.detach())
