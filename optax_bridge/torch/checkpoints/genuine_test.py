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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "names.toml").write_text(NAMES)
    return tmp_path


def saved_of(model: Any, optimizer: Any) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def there_and_back(folder: Path, saved: Any, base: Any, like: Any) -> tuple[Any, Any]:
    """The state that a file becomes, and what `torch.load` gives once it went back into a base."""
    torch.save(saved, folder / "a.pt")
    torch.save(base, folder / "base.pt")
    names = folder / "names.toml"
    take = functools.partial(moved_to_flax, names=names, params_only=False, step=3)
    convert_file(folder / "a.pt", folder / "new", like=like, moved=take)
    options: Any = {"like": like, "names": names, "base": folder / "base.pt"}
    done = to_torch_file(folder / "new", folder / "back.pt", **options)
    assert done.step == 3 and "bn.num_batches_tracked" in done.unchanged
    with pytest.raises(CheckpointError, match=r"a file that torch\.save wrote, found Orbax"):
        to_torch_file(folder / "new", folder / "x.pt", **{**options, "base": folder / "new"})
    state = restore_checkpoint(folder / "new", like)
    return state, torch.load(folder / "back.pt", weights_only=True)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("AdamW", {}), ("NAdam", {}), ("SGD", {"momentum": 0.9}), ("SGD", {}), ("Adagrad", {})],
)
def test_everything_arrives_and_goes_back_to_the_bit(
    name: str, settings: Any, folder: Path
) -> None:
    """NAdam has a number for each parameter, SGD without momentum nothing."""
    make = functools.partial(getattr(torch.optim, name), lr=0.01, **settings)
    tx = getattr(optax_bridge.torch, name.lower())(lr=0.01, **settings)
    saved, base = ({**saved_of(*trained(make, count)), "epoch": count} for count in (3, 1))
    with pytest.warns(optax_bridge.LeftOverWarning, match="epoch"):
        state, back = there_and_back(folder, saved, base, template(tx))
    np.testing.assert_array_equal(state.params["fc"]["kernel"], saved["model"]["fc.weight"].T)
    assert (int(state.step), int(state.opt_state.count), back["epoch"]) == (3, 3, 1)
    saved["model"]["bn.num_batches_tracked"] = base["model"]["bn.num_batches_tracked"]
    assert back["model"].keys() == saved["model"].keys()
    for key, tensor in saved["model"].items():
        assert torch.equal(back["model"][key], tensor), key
    for index, fields in saved["optimizer"]["state"].items():
        for field, value in fields.items():
            actual = back["optimizer"]["state"][index][field]
            assert value is None or (actual.shape, actual.dtype) == (value.shape, value.dtype)
            assert value is None or torch.equal(actual, value), field


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
    ],
)
def test_damaged_files_and_files_with_code_are_refused(data, expected, tmp_path):
    (tmp_path / "a.pt").write_bytes(data())
    with pytest.raises(CheckpointError, match=expected):
        read_checkpoint(tmp_path / "a.pt")


def test_safetensors_and_bfloat16_are_read(folder):
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {"w": torch.arange(3.0).to(torch.bfloat16), "n": torch.tensor(3)}
    safetensors.save_file(tensors, folder / "a.safetensors")
    torch.save(tensors, folder / "a.pt")
    for name in ("a.safetensors", "a.pt"):
        tree = read_checkpoint(folder / name).tree
        assert (tree["w"].dtype, tree["w"].tolist(), tree["n"]) == (jnp.bfloat16, [0, 1, 2], 3)
        assert torch.equal(as_tensor(tree["w"]), tensors["w"])
    data = (folder / "a.safetensors").read_bytes()
    (folder / "a.safetensors").write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match="cut short"):
        read_checkpoint(folder / "a.safetensors")


@pytest.mark.parametrize("wrapper", [lambda model: model, torch.nn.DataParallel])
def test_a_training_in_memory_goes_on_as_pytorch_does(wrapper, folder):
    from_torch = functools.partial(FullTrainState.from_torch, names=folder / "names.toml")
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
    state = from_torch(new, params=new_model)
    assert int(state.step) == 0
    before = np.array(state.params["fc"]["kernel"])
    take_steps(new_model, new)
    np.testing.assert_array_equal(state.params["fc"]["kernel"], before)
    with pytest.raises(CheckpointError, match="the very module"):
        from_torch(new, params=model)


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_tied_tensor_goes_back_with_the_first_or_on_its_own(is_listed, folder):
    params = {"a": jnp.arange(9.0).reshape(3, 3)}
    text = '[names]\n"0.weight" = "params/a"\n'
    if is_listed:
        text += '"1.weight" = "params/b"\n'
        params["b"] = -params["a"]
    names, base = folder / "names.toml", folder / "base.pt"
    names.write_text(text if is_listed else f'drop = ["1.weight"]\n{text}')
    like = FullTrainState.create(apply_fn=None, params=params, tx=optax.sgd(0.1))
    (folder / "new").write_bytes(serialization.to_bytes(like))
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    tied[1].weight = tied[0].weight
    torch.save({"model": tied.state_dict()}, base)
    to_torch_file(folder / "new", folder / "back.pt", like=like, names=names, base=base)
    back = torch.load(folder / "back.pt", weights_only=True)["model"]
    np.testing.assert_array_equal(back["0.weight"], params["a"])
    np.testing.assert_array_equal(back["1.weight"], params["b" if is_listed else "a"])
    if not is_listed:  # the first of the two names is that of the optimizer's parameter
        new = torch.optim.SGD(tied.parameters())
        state = FullTrainState.from_torch(new, params=tied, names=names, step=1)
        np.testing.assert_array_equal(state.params["a"], tied[0].weight.detach())
