"""A genuine optimizer of PyTorch moves to Flax and back; what cannot is refused by name."""

import pickle
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
from optax_bridge.torch.checkpoints.draft import draft_names
from optax_bridge.torch.checkpoints.files import moved_to_flax, to_torch_file
from optax_bridge.torch.checkpoints.layout import torch_checkpoint

torch = pytest.importorskip("torch")
nn = torch.nn

NAMES = """
order = ["fc.weight", "fc.bias", "bn.weight", "bn.bias"]
drop = ["*.num_batches_tracked"]
[names]
"fc.weight" = { to = "params/fc/kernel", as = "o i -> i o" }
"fc.bias" = "params/fc/bias"
"bn.weight" = "params/bn/scale"
"bn.bias" = "params/bn/bias"
"bn.running_mean" = "batch_stats/bn/mean"
"bn.running_var" = "batch_stats/bn/var"
"""


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


def groups(model):
    named = dict(model.named_parameters())
    return [
        {"params": [named["fc.weight"]], "weight_decay": 0.1},
        {"params": [p for name, p in named.items() if name != "fc.weight"], "weight_decay": 0.0},
    ]


def trained(make=lambda p: torch.optim.AdamW(p, lr=0.01), count=3) -> Any:
    torch.manual_seed(0)
    model = Net()
    optimizer = make(groups(model))
    take_steps(model, optimizer, count)
    return model, optimizer


def template(tx: Any = None) -> FullTrainState:
    params = {
        "fc": {"kernel": jnp.zeros((3, 4)), "bias": jnp.zeros(4)},
        "bn": {"scale": jnp.ones(4), "bias": jnp.zeros(4)},
    }
    stats = {"bn": {"mean": jnp.zeros(4), "var": jnp.ones(4)}}
    tx = tx or optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.01))
    return FullTrainState.create(apply_fn=None, params=params, tx=tx, batch_stats=stats)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "names.toml").write_text(NAMES)
    return tmp_path


def move(folder, saved: Any, like: Any = None, names=True, **options: Any) -> Any:
    torch.save(saved, folder / "a.pt")
    like = template() if like is None else like
    convert_file(
        folder / "a.pt",
        folder / "new",
        like=like,
        moved=lambda read, like: moved_to_flax(
            read,
            like,
            names=folder / "names.toml" if names else None,
            **{"params_only": False, "step": None, **options},
        ),
    )
    return restore_checkpoint(folder / "new", like)


def saved_of(model, optimizer, **more):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), **more}


def test_everything_arrives_and_goes_back_to_the_bit(folder):
    model, optimizer = trained()
    saved = saved_of(model, optimizer, epoch=7)
    with pytest.warns(optax_bridge.LeftOverWarning, match="epoch"):
        state = move(folder, saved)
    kernel = optimizer.state[model.fc.weight]
    adam = state.opt_state[1][0]
    np.testing.assert_array_equal(state.params["fc"]["kernel"], model.fc.weight.detach().numpy().T)
    np.testing.assert_array_equal(adam.mu["fc"]["kernel"], kernel["exp_avg"].numpy().T)
    np.testing.assert_array_equal(
        adam.nu["bn"]["scale"], optimizer.state[model.bn.weight]["exp_avg_sq"]
    )
    np.testing.assert_array_equal(state.batch_stats["bn"]["var"], model.bn.running_var)
    assert (int(state.step), int(adam.count)) == (3, 3)

    other_model, other = trained(count=1)  # the base: other numbers, the same settings
    torch.save(saved_of(other_model, other, epoch=7), folder / "base.pt")
    done = to_torch_file(
        folder / "new", folder / "back.pt",
        like=template(), names=folder / "names.toml", base=folder / "base.pt",
    )  # fmt: skip
    assert (done.step, list(done.unchanged)) == (3, ["epoch", "bn.num_batches_tracked"])
    back = torch.load(folder / "back.pt", weights_only=True)
    other_model.load_state_dict(back["model"])
    other.load_state_dict(back["optimizer"])
    for each, optimizer_of_it in ((model, optimizer), (other_model, other)):
        take_steps(each, optimizer_of_it)
    for (name, one), other_one in zip(
        model.named_parameters(), other_model.parameters(), strict=True
    ):
        assert torch.equal(one, other_one), name


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda saved: {"state_dict": saved["model"], "optimizer_states": [saved["optimizer"]]},
        lambda saved: {**saved, "model": {f"module.{n}": v for n, v in saved["model"].items()}},
        lambda saved: {**saved, "model": {f"_orig_mod.{n}": v for n, v in saved["model"].items()}},
    ],
)
def test_the_usual_layouts_and_wrappers_are_the_same(folder, wrapped):
    model, optimizer = trained()
    state = move(folder, wrapped(saved_of(model, optimizer)))
    np.testing.assert_array_equal(state.params["fc"]["bias"], model.fc.bias.detach())


def test_a_wrapper_over_all_is_one_only_where_every_name_has_it():
    names = ["module.a.weight", "module._orig_mod.b.weight", "b.module.weight", "head.weight"]
    for taken, expected in ((2, {"a.weight", "b.weight"}), (3, None), (4, None)):
        model = {name: np.ones((2, 3), np.float32) for name in names[:taken]}
        found = torch_checkpoint({"model": model}, "a.pt").tensors
        assert set(found) == (expected or {n.replace("_orig_mod.", "") for n in model})


def test_a_step_that_is_given_goes_before_the_files_own(folder):
    saved = saved_of(*trained())
    state = move(folder, saved, step=5)
    assert (int(state.step), int(state.opt_state[1][0].count)) == (5, 5)
    (folder / "other").mkdir()
    (folder / "other" / "names.toml").write_text(NAMES)
    assert int(move(folder / "other", saved, step=0).step) == 0


def test_an_optimizer_before_its_first_step_brings_parameters_alone(folder):
    state = move(folder, saved_of(*trained(count=0)))
    assert int(state.step) == 0
    assert not np.any(state.opt_state[1][0].mu["fc"]["kernel"])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_does_not_say_its_step(momentum, folder):
    saved = saved_of(*trained(lambda p: torch.optim.SGD(p, lr=0.1, momentum=momentum)))
    like = template(optax.sgd(0.1, momentum=momentum or None))
    with pytest.raises(CheckpointError, match="--step N"):
        move(folder, saved, like)
    assert int(move(folder, saved, like, step=3).step) == 3


def test_momentum_before_its_first_step_has_taken_none(folder):
    sgd = trained(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), count=0)
    assert int(move(folder, saved_of(*sgd), template(optax.sgd(0.1, momentum=0.9))).step) == 0


def refused(folder, saved: Any, expected: str, **options: Any) -> None:
    with pytest.raises(CheckpointError, match=expected):
        move(folder, saved, **options)
    assert not (folder / "new").exists()


def test_what_cannot_be_moved_is_refused_and_nothing_is_written(folder):
    model, optimizer = trained()
    saved = saved_of(model, optimizer)
    refused(folder, saved, "--names names.toml", names=False)
    refused(folder, {**saved, "ema": saved["model"]}, 'model = "..."')
    refused(folder, {"model": saved["model"]}, "--params-only")
    refused(folder, {"optimizer": saved["optimizer"]}, "one model's state dict, found none")
    refused(folder, saved, "another optimizer", like=template(optax_bridge.torch.sgd(0.1, 0.9)))
    more = {**saved, "model": {**saved["model"], "extra.weight": torch.ones(2)}}
    refused(folder, more, "found none for extra.weight")
    fewer = {**saved, "model": {n: v for n, v in saved["model"].items() if n != "fc.bias"}}
    refused(folder, fewer, "tensors of the model, found no fc.bias")
    other = {**saved, "model": {**saved["model"], "fc.bias": torch.ones(9)}}
    refused(folder, other, "fc.bias: expected a state of shape")
    optimizer.state[model.bn.weight]["step"] += 1
    refused(folder, saved_of(model, optimizer), "bn.weight 4.*Those that have no gradient")


def test_the_state_of_adamax_does_not_become_that_of_adam(folder):
    saved = saved_of(*trained(lambda p: torch.optim.Adamax(p, lr=0.01)))
    refused(folder, saved, "that of Adamax, exp_inf")
    exact = template(optax_bridge.torch.adamax(lr=0.01))
    assert int(move(folder, saved, exact).step) == 3


def test_names_by_the_alphabet_are_doubted_and_those_of_an_optimizer_decide(folder):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    by_alphabet = dict(sorted(model.state_dict().items()))
    saved = {"model": by_alphabet, "optimizer": optimizer.state_dict()}
    assert "by the alphabet" in torch_checkpoint(read_saved(folder, saved), "file").order().doubt
    named = torch.optim.Adam(model.named_parameters())
    named.step()
    found = torch_checkpoint(read_saved(folder, saved_of(model, named)), "file")
    assert found.order().names[2] == "1.weight"


def read_saved(folder, saved):
    torch.save(saved, folder / "b.pt")
    return read_checkpoint(folder / "b.pt").tree


def test_damaged_files_and_files_with_code_are_refused(folder):
    class Code:
        def __reduce__(self):
            return print, ("ran",)

    torch.save({"model": Code()}, folder / "a.pt")
    with pytest.raises(CheckpointError, match=r"code: .*print.*state_dict\(\)"):
        read_checkpoint(folder / "a.pt")
    (folder / "p.pt").write_bytes(pickle.dumps({"model": 1}))
    with pytest.raises(CheckpointError, match="pickle"):
        read_checkpoint(folder / "p.pt")
    torch.save(saved_of(*trained()), folder / "a.pt")
    whole = (folder / "a.pt").read_bytes()
    (folder / "a.pt").write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match=r"a file that torch\.save wrote"):
        read_checkpoint(folder / "a.pt")
    expanded = {"w": torch.ones(1).expand(2**20)}
    torch.save(expanded, folder / "a.pt")
    with pytest.raises(CheckpointError, match="contiguous"):
        read_checkpoint(folder / "a.pt")


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


def test_a_draft_marks_what_shapes_do_not_settle(folder):
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3), nn.Linear(3, 3), nn.Linear(3, 3)
    )
    shapes = {
        "Conv_0": (3, 3, 1, 2), "Dense_0": (8, 3), "Dense_1": (3, 3), "Dense_2": (3, 3),
    }  # fmt: skip
    params = {
        name: {"kernel": jnp.zeros(shape), "bias": jnp.zeros(shape[-1])}
        for name, shape in shapes.items()
    }
    like = optax_bridge.TrainState.create(None, params, optax.sgd(0.1))
    found = torch_checkpoint(read_saved(folder, {"model": model.state_dict()}), "file")
    lines = draft_names(found, like).splitlines()
    by_name = {line.split('"')[1]: line for line in lines if line.startswith('"')}
    assert (
        by_name["0.weight"]
        == '"0.weight" = { to = "params/Conv_0/kernel", as = "o i h w -> h w i o" }'
    )
    assert "o (c s) -> (s c) o" in by_name["2.weight"] and "unsure" in by_name["2.weight"]
    assert "Dense_1/kernel" in by_name["3.weight"] and "fits 2 places" in by_name["3.weight"]
    assert "Dense_2/bias" in by_name["4.bias"] and "unsure" in by_name["4.bias"]
    fewer = like.replace(params={name: params[name] for name in ("Conv_0", "Dense_0", "Dense_1")})
    assert 'unsure = "fits 1 place, as others do"' in draft_names(found, fewer)


def test_a_prefix_of_all_names_is_left_out_of_the_comparison(folder):
    """Lightning has `model.` before every name."""
    tensors = {f"model.{n}": t for n, t in trained()[0].state_dict().items()}
    tensors |= {f"model.{name}.weight": torch.ones(4) for name in ("norm1", "norm2")}
    params = {**template().params, "norm2": {"scale": jnp.ones(4)}, "norm1": {"scale": jnp.ones(4)}}
    text = draft_names(
        torch_checkpoint(read_saved(folder, {"state_dict": tensors}), "file"),
        template().replace(params=params),
    )
    assert '"model.norm1.weight" = "params/norm1/scale"' in text.splitlines()
    assert "unsure" not in text


@pytest.mark.parametrize("wrapper", [lambda model: model, torch.nn.DataParallel])
def test_a_training_in_memory_goes_on_as_pytorch_does(wrapper, folder):
    model, optimizer = trained()
    state = FullTrainState.from_torch(optimizer, params=wrapper(model), names=folder / "names.toml")
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

    sgd_model, sgd = trained(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    names = folder / "names.toml"
    assert FullTrainState.from_torch(sgd, params=sgd_model, names=names, step=3).step == 3

    new_model, new = trained(count=0)
    state = FullTrainState.from_torch(new, params=new_model, names=folder / "names.toml")
    assert int(state.step) == 0
    before = np.array(state.params["fc"]["kernel"])
    take_steps(new_model, new)
    np.testing.assert_array_equal(state.params["fc"]["kernel"], before)
    with pytest.raises(CheckpointError, match="the very module"):
        FullTrainState.from_torch(new, params=model, names=folder / "names.toml")


def test_parameters_that_are_frozen_in_pytorch_stay_so(folder):
    model = Net()
    model.bn.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    take_steps(model, optimizer)
    with pytest.warns(UserWarning, match=r"bn.weight, bn.bias: no state.*set_to_zero"):
        state = FullTrainState.from_torch(optimizer, params=model, names=folder / "names.toml")
    new: Any = state.apply_gradients(grads=jax.tree.map(jnp.ones_like, state.params)).params
    assert (new["bn"]["scale"] == 1).all()
    assert (new["fc"]["kernel"] != state.params["fc"]["kernel"]).all()
    labels = {"fc": "trained", "bn": "frozen"}
    parts: Any = {"trained": optax.adam(0.1), "frozen": optax.set_to_zero()}
    with pytest.warns(UserWarning, match="bn.weight, bn.bias: no state"):
        moved = move(folder, saved_of(model, optimizer), template(optax.partition(parts, labels)))
    assert int(moved.step) == 3


def returned(folder, like, source, base):
    """What `torch.load` gives of a state that went back into a base."""
    torch.save(base, folder / "base.pt")
    to_torch_file(
        source, folder / "back.pt",
        like=like, names=folder / "names.toml", base=folder / "base.pt",
    )  # fmt: skip
    return torch.load(folder / "back.pt", weights_only=True)


def test_numbers_of_each_parameter_go_back(folder):
    """NAdam's product of momenta is an array without axes, beside moments with them."""

    def nadam(params):
        return torch.optim.NAdam(params, lr=0.01)

    model, optimizer = trained(nadam)
    like = template(optax_bridge.torch.nadam(0.01))
    move(folder, saved_of(model, optimizer), like)
    back = returned(folder, like, folder / "new", saved_of(*trained(nadam, count=1)))
    for index, fields in optimizer.state_dict()["state"].items():
        assert fields["mu_product"].ndim == 0
        for name, tensor in fields.items():
            actual = back["optimizer"]["state"][index][name]
            assert (actual.shape, actual.dtype) == (tensor.shape, tensor.dtype)
            assert torch.equal(actual, tensor), name


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_an_array_is_taken_apart_there_and_joined_on_the_way_back(name, folder):
    """SGD without momentum keeps nothing, and goes back all the same."""
    qkv = (
        '"qkv" = { to = ["params/q", "params/k", "params/v"], as = "(n h d) i -> n i h d", h = 2 }'
    )
    (folder / "names.toml").write_text(f"[names]\n{qkv}\n")

    def saved(seed):
        weight = nn.Parameter(torch.from_numpy(np.random.default_rng(seed).normal(size=(12, 5))))
        optimizer = getattr(torch.optim, name)([weight], lr=0.1)
        weight.square().sum().backward()
        optimizer.step()
        return {"model": {"qkv": weight.detach()}, "optimizer": optimizer.state_dict()}

    with jax.enable_x64(True):
        params = {part: jnp.zeros((5, 2, 2), jnp.float64) for part in "qkv"}
        tx = getattr(optax_bridge.torch, name.lower())(lr=0.1)
        like = FullTrainState.create(apply_fn=None, params=params, tx=tx)
        genuine = saved(0)
        state = move(folder, genuine, like, step=1)
        back = returned(folder, like, folder / "new", saved(1))
    np.testing.assert_array_equal(state.params["k"][:, 1, 0], genuine["model"]["qkv"][6])
    assert torch.equal(back["model"]["qkv"], genuine["model"]["qkv"])
    for field, value in genuine["optimizer"]["state"].get(0, {}).items():
        if value is not None:
            assert torch.equal(back["optimizer"]["state"][0][field], value), field


def test_statistics_along_axes_move_where_the_parameter_lies_as_it_did(folder):
    weight = nn.Parameter(torch.ones(4, 3))
    optimizer = torch.optim.Adafactor([weight])
    (weight * torch.arange(3)).square().sum().backward()
    optimizer.step()
    saved = {"model": {"w": weight.detach()}, "optimizer": optimizer.state_dict()}
    tx = optax_bridge.torch.adafactor()
    like = FullTrainState.create(apply_fn=None, params={"w": jnp.zeros((4, 3))}, tx=tx)
    (folder / "names.toml").write_text('[names]\n"w" = { to = "params/w", as = "o i -> i o" }')
    refused(folder, saved, "row_var of the parameter's shape", like=like)
    (folder / "names.toml").write_text('[names]\n"w" = "params/w"')
    columns = move(folder, saved, like).opt_state.col_var["w"]
    np.testing.assert_array_equal(columns, optimizer.state[weight]["col_var"])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_tied_tensor_goes_back_with_the_first_or_on_its_own(is_listed, folder):
    params = {"a": {"kernel": jnp.arange(9.0).reshape(3, 3)}}
    names = '[names]\n"first.weight" = "params/a/kernel"\n'
    if not is_listed:
        names = f'drop = ["second.weight"]\n{names}'
    else:
        names += '"second.weight" = "params/b/kernel"\n'
        params["b"] = {"kernel": -params["a"]["kernel"]}
    (folder / "names.toml").write_text(names)
    like = FullTrainState.create(apply_fn=None, params=params, tx=optax.sgd(0.1))
    (folder / "new").write_bytes(serialization.to_bytes(like))
    back = returned(folder, like, folder / "new", {"model": Tied().state_dict()})["model"]
    first, second = (
        np.asarray(params[name]["kernel"]) for name in ("a", "b" if is_listed else "a")
    )
    np.testing.assert_array_equal(back["first.weight"], first)
    np.testing.assert_array_equal(back["second.weight"], second)
