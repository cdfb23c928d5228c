"""The contents of a file of PyTorch move to Flax; what cannot is refused by name.

PyTorch is not needed: the trees are as its files have them. `genuine_test.py` has its own.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import unflatten_dict

import optax_bridge
from optax_bridge import CheckpointError, FullTrainState
from optax_bridge.checkpoints.conversions import as_template
from optax_bridge.checkpoints.moves import Move
from optax_bridge.checkpoints.read import Read
from optax_bridge.metadata.paths import leaves
from optax_bridge.recorded_test import refused as raises
from optax_bridge.torch.checkpoints.draft import draft_names
from optax_bridge.torch.checkpoints.files import description_of, moved_to_flax
from optax_bridge.torch.checkpoints.layout import torch_checkpoint
from optax_bridge.torch.checkpoints.moves import plan_from_torch, plan_to_torch
from optax_bridge.torch.checkpoints.names import parse_names

SHAPES = {"fc.weight": (4, 3), "fc.bias": (4,), "bn.weight": (4,), "bn.bias": (4,)}
BUFFERS = {"bn.running_mean": (4,), "bn.running_var": (4,)}
NAMES: Any = {
    "order": [*SHAPES],
    "drop": ["*.num_batches_tracked"],
    "names": {
        "fc.weight": {"to": "params/fc/kernel", "as": "o i -> i o"},
        "fc.bias": "params/fc/bias",
        "bn.weight": "params/bn/scale",
        "bn.bias": "params/bn/bias",
        "bn.running_mean": "batch_stats/bn/mean",
        "bn.running_var": "batch_stats/bn/var",
    },
}


def numbers(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Arrays of these shapes, no two numbers of which are the same."""
    ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])
    parts = np.split(np.arange(ends[-1] if shapes else 0, dtype=np.float32) + 1, ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=False)]


def saved(
    fields: Sequence[str] = ("exp_avg", "exp_avg_sq"), step: float | None = 3, **settings: Any
) -> dict[str, Any]:
    """A model and its optimizer, whose weight is a group of its own."""
    shapes = {**SHAPES, **BUFFERS}
    tensors = dict(zip(shapes, numbers(*shapes.values()), strict=True))
    counts = {} if step is None else {"step": np.float64(step)}
    state = {
        index: counts | dict(zip(fields, numbers(*[shape] * len(fields)), strict=True))
        for index, shape in enumerate(SHAPES.values())
        if fields
    }
    groups = [{"lr": 0.1, **settings, "params": params} for params in ([0], [1, 2, 3])]
    tensors["bn.num_batches_tracked"] = np.array(3)
    return {"model": tensors, "optimizer": {"state": state, "param_groups": groups}}


def template(tx: Any = None) -> FullTrainState:
    params = {
        "fc": {"kernel": jnp.zeros((3, 4)), "bias": jnp.zeros(4)},
        "bn": {"scale": jnp.ones(4), "bias": jnp.zeros(4)},
    }
    stats = {"bn": {"mean": jnp.zeros(4), "var": jnp.ones(4)}}
    tx = tx or optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.01))
    return FullTrainState.create(apply_fn=None, params=params, tx=tx, batch_stats=stats)


def moved(tree: Any, like: Any, step: int | None = None, names: Any = NAMES) -> Read:
    read = Read(Path("a.pt"), "PyTorch", tree)
    return moved_to_flax(read, like, names=names, step=step, program="new.py:make")


def move(tree: Any, like: Any = None, step: int | None = None, names: Any = NAMES) -> Any:
    like = template() if like is None else like
    return as_template(moved(tree, like, step, names), like, allow_nan=False).tree


def refused(tree: Any, expected: str, like: Any = None, names: Any = NAMES) -> None:
    with raises(CheckpointError, expected):
        move(tree, like, names=names)


def test_a_wrapper_over_all_is_one_only_where_every_name_has_it() -> None:
    inner = "_fsdp_wrapped_module._checkpoint_wrapped_module."
    names = ["module.a.weight", f"module.{inner}b.weight", "b.module.weight", "head.weight"]
    for taken, expected in ((2, {"a.weight", "b.weight"}), (3, None), (4, None)):
        tensors = {name: np.ones((2, 3), np.float32) for name in names[:taken]}
        found = torch_checkpoint({"model": tensors}, "a.pt").tensors
        assert set(found) == (expected or {n.replace(inner, "") for n in tensors})


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_does_not_say_its_step(momentum: float) -> None:
    fields = ("momentum_buffer",) if momentum else ()
    tree = saved(fields, None, momentum=momentum, dampening=0.0)
    like = template(optax.sgd(lambda count: 0.1, momentum=momentum or None))
    with raises(CheckpointError, "--step N"):
        move(tree, like)
    state: Any = move(tree, like, step=3)
    assert (int(state.step), int(state.opt_state[1].count)) == (3, 3)  # that of the schedule
    if momentum:
        trace = state.opt_state[0].trace["fc"]["kernel"]
        np.testing.assert_array_equal(trace, tree["optimizer"]["state"][0]["momentum_buffer"].T)


def test_what_cannot_be_moved_is_refused() -> None:
    tree = saved()
    tensors, optimizer = tree["model"], tree["optimizer"]
    state = optimizer["state"]
    refused(tree, "a.pt --names --like new.py:make > names.toml; .*--names names.toml", names=None)
    refused({"model": tensors}, "--params-only")
    names: Any
    for kind, names, remedy in (("safetensors", None, "Make it"), ("Orbax", NAMES, "Leave")):
        with raises(CheckpointError, f"a names file for a checkpoint.*{remedy}"):
            moved_to_flax(Read(Path("a"), kind, tensors), None, names=names, step=None)
    names = {key: value for key, value in NAMES.items() if key != "order"}
    refused(tree, "states that belong to one parameter each", names=names)
    refused(tree, "a template with one TrainState.*2 of them", [template(), template()])
    refused({"optimizer": optimizer}, "one model's state dict, found none")
    refused(tree, "another optimizer", template(optax_bridge.torch.sgd(0.1, 0.9)))
    refused({**tree, "ema": tensors}, 'model = "..."')
    for other, expected in (
        ({**tensors, "extra.weight": np.ones(2)}, "found none for extra.weight"),
        ({"bn.bias": np.ones(4)}, "tensors of the model, found no fc.weight"),
        ({**tensors, "fc.bias": np.ones(9)}, "fc.bias: expected a state of shape"),
    ):
        refused({**tree, "model": other}, expected)
    later = {**state, 2: {**state[2], "step": np.float32(4)}}
    for changed, expected in (
        ({"state": {**state, 9: state[2]}}, r"a state for each parameter, by index, .*9"),
        ({"state": {"w": state[0]}}, "a state for each parameter, by index, .*w"),
        ({"param_groups": [{"params": ["w"]}]}, "a group's parameters by index, .*w"),
        ({"state": later}, "bn.weight 4.*Those that have no gradient"),
    ):
        refused({**tree, "optimizer": {**optimizer, **changed}}, expected)
    negative = saved(("sum",))
    for fields in negative["optimizer"]["state"].values():
        fields["sum"] *= -1
    refused(negative, "0 or more", template(optax_bridge.torch.adagrad()))
    for step in (2.5, -1, 2**31 - 1):
        refused(saved(step=step), r"a.pt: expected the number of steps, an integer from 0")


def test_the_state_of_adamax_does_not_become_that_of_adam() -> None:
    tree = saved(("exp_avg", "exp_inf"))
    named = optax.named_chain(("clip", optax.clip(1.0)), ("adam", optax.adam(0.01)))
    groups = optax.partition({"a": optax.adam(0.01)}, {"fc": "a", "bn": "a"})
    for tx in (None, optax.adamax(0.01), named, groups):
        refused(tree, "that of Adamax, exp_inf", template(tx))
    state = move(tree, template(optax_bridge.torch.adamax(lr=0.01)))
    largest = tree["optimizer"]["state"][0]["exp_inf"].T
    np.testing.assert_array_equal(state.opt_state.exp_inf["fc"]["kernel"], largest)


def test_names_by_the_alphabet_are_doubted_and_those_of_an_optimizer_decide() -> None:
    tree = saved()
    tree["model"] = {name: tree["model"][name] for name in sorted(tree["model"])}
    assert "by the alphabet" in torch_checkpoint(tree, "file").order().doubt
    for group in tree["optimizer"]["param_groups"]:
        group["param_names"] = [f"module.{[*SHAPES][index]}" for index in group["params"]]
    order = torch_checkpoint(tree, "file").order()
    assert (list(order.names.values()), order.doubt) == ([*SHAPES], "")
    listed = ["fc.weight", "bn.bias", "bn.weight", "fc.bias"]
    assert list(torch_checkpoint(tree, "file").order(listed).names.values()) == listed


def test_a_tensor_of_two_names_is_one_parameter() -> None:
    weight, nothing = np.ones((2, 3), np.float32), np.zeros(0, np.float32)
    tensors = {"w": weight, "v": weight, "e": nothing, "d": nothing}
    state = {index: {"exp_avg": np.zeros_like(tensors[n])} for index, n in enumerate("wed")}
    optimizer = {"state": state, "param_groups": [{"params": [0, 1, 2]}]}
    found = torch_checkpoint({"model": tensors, "optimizer": optimizer}, "file")
    assert found.tied == {"v": "w"}
    square = np.ones((3, 3), np.float32)
    views = {"w": square, "t": square.T, "e": square[0]}  # which begin where it does
    assert not torch_checkpoint({"model": views, "optimizer": optimizer}, "file").tied
    assert (list(found.order().names.values()), found.order().doubt) == (["w", "e", "d"], "")
    params = {"w": weight, "x": np.ones(7)}
    text = draft_names(found, FullTrainState.create(None, params, optax.sgd(0.1)))
    assert "# params/x [7]: nothing in PyTorch" in text and '# "e" [0]: nothing in Flax' in text
    assert 'drop = ["v"]\n' in text and text.count('"v"') == 1 and '"w" = "params/w"' in text


def test_an_array_is_taken_apart_there_and_joined_on_the_way_back() -> None:
    weight, moment = numbers((12, 5), (12, 5))
    state = {0: {"step": np.float32(3), "max_exp_avg_sq": moment}}
    optimizer = {"state": state, "param_groups": [{"lr": 0.1, "params": [0]}]}
    checkpoint = torch_checkpoint({"model": {"w": weight}, "optimizer": optimizer}, "file")
    line = {"to": [f"params/{n}" for n in "qkv"], "as": "(n h d) i -> n i h d", "h": 2}
    rules = parse_names({"names": {"w": line}}, "names").rules(["w"])
    forward = plan_from_torch(checkpoint, rules, "names", checkpoint.order())
    arrays = forward.apply()
    for number, part in enumerate("qkv"):
        for path, array in ((("params", part), weight), (("param_states", part), moment)):
            expected = array[4 * number : 4 * number + 4].reshape(2, 2, 5).transpose(2, 0, 1)
            field = ("max_exp_avg_sq",) * (array is moment)
            np.testing.assert_array_equal(arrays[*path, *field], expected)
    returned = plan_to_torch(forward, arrays, "base").apply()
    assert returned.keys() == {move.source for move in forward.moves}
    np.testing.assert_array_equal(returned["model", "w"], weight)
    np.testing.assert_array_equal(returned["optimizer", "state", "0", "max_exp_avg_sq"], moment)
    with raises(CheckpointError, r"\['params'\]\['o'\] in addition"):
        plan_to_torch(forward, {**arrays, ("params", "o"): weight}, "base").check()
    for change in (np.float16, lambda array: array[..., :1] if array.ndim else array):
        other = {path: change(array) for path, array in arrays.items()}
        with raises(CheckpointError, r"\['w'\].*float.*a base of the same model"):
            plan_to_torch(forward, other, "base").check()


def test_statistics_along_axes_move_where_the_parameter_lies_as_it_did() -> None:
    weight, rows, columns = numbers((4, 3), (4, 1), (1, 3))
    state = {0: {"step": np.float32(1), "row_var": rows, "col_var": columns}}
    optimizer = {"state": state, "param_groups": [{"lr": 0.1, "params": [0]}]}
    tree = {"model": {"w": weight}, "optimizer": optimizer}
    tx = optax_bridge.torch.adafactor()
    like = FullTrainState.create(apply_fn=None, params={"w": jnp.zeros((4, 3))}, tx=tx)
    for line, problem in (
        ({"to": "params/w", "as": "o i -> i o"}, "row_var of the parameter's shape"),
        ({"to": [f"params/{n}" for n in "abcd"]}, "row_var of the parameter's"),
        ({"to": [f"params/{n}" for n in "abc"]}, "a first axis of 3, as there are paths"),
    ):
        refused(tree, problem, like, {"names": {"w": line}})
    state = move(tree, like, names={"names": {"w": "params/w"}})
    np.testing.assert_array_equal(state.opt_state.col_var["w"], columns)


def page(tree: Any) -> str:
    return "\n".join(description_of(Read(Path("a.pt"), "PyTorch", tree)))


def test_pages_of_inspect(recorded: Any) -> None:
    tree = saved(weight_decay=0.5, maximize=False)
    model, optimizer = tree["model"], tree["optimizer"]
    four = {
        "state": {},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0, 1, 2, 3]}],
    }
    recorded("pages.txt", {
        "two groups": page(tree),
        "a model alone": page(model),
        "two models": page({**tree, "ema": model}),
        "two optimizers": page({"model": model, "a": optimizer, "b": optimizer}),
        "an optimizer alone": page(optimizer),
        "before the first step": page({"net": {"state_dict": model}, "optimizer": four}),
        "momentum": page(saved(("momentum_buffer",), None, momentum=0.9, dampening=0.0)),
    })  # fmt: skip


def test_where_each_tensor_goes(recorded: Any) -> None:
    frozen = saved()
    del frozen["optimizer"]["state"][3]
    model, sgd = saved()["model"], template(optax.sgd(0.1, momentum=0.9))
    parts: Any = {"trained": optax.adam(0.1), "frozen": optax.set_to_zero()}
    kinds = {"fc": "trained", "bn": {"scale": "trained", "bias": "frozen"}}
    partition = optax.partition(parts, kinds)
    trees: Any = {
        "Adam": (saved(), template(), None),
        "a step that is given": (saved(), template(), 7),
        "momentum": (saved(("momentum_buffer",), None, momentum=0.9, dampening=0.0), sgd, 2),
        "a frozen one": (frozen, template(partition), None),
        "before the first step": (saved((), None), template(), None),
        "more in the file": ({**saved(), "epoch": 3, "more": {"a": 1}}, template(), None),
        "as Lightning has it": (
            {"state_dict": model, "optimizer_states": [saved()["optimizer"]]},
            template(),
            None,
        ),
    }

    def moves(tree: Any, like: Any, step: int | None) -> str:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read = moved(tree, like, step)
            state = as_template(read, like, allow_nan=False).tree
        lines = [f"step {int(state.step)}", *(str(warning.message) for warning in caught)]
        for path, leaf in leaves(read.tree):
            flat = np.ravel(np.asarray(leaf, float)) if hasattr(leaf, "shape") else None
            total = repr(leaf) if flat is None else flat @ np.arange(1.0, len(flat) + 1)
            lines.append(f"{read.from_file(Move(path, path))} {total}")
        return "\n".join(lines)

    for wrapper in ("module.", "_orig_mod."):
        wrapped = {**saved(), "model": {f"{wrapper}{name}": x for name, x in model.items()}}
        trees[f"wrapped in {wrapper}"] = wrapped, template(), 0
    recorded("moves.txt", {name: moves(*each) for name, each in trees.items()})


def draft(shapes: Any, params: Any) -> str:
    tensors = dict(zip(shapes, numbers(*shapes.values()), strict=True))
    tree = unflatten_dict({name: jnp.zeros(shape) for name, shape in params.items()}, sep="/")
    stats = tree.pop("batch_stats", None)
    like = FullTrainState.create(None, tree, optax.sgd(0.1), batch_stats=stats)
    return draft_names(torch_checkpoint({"model": tensors}, "file"), like)


def dense(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/kernel": shape, f"{name}/bias": shape[-1:]}


def test_drafts_of_names(recorded: Any) -> None:
    shapes = {"0.weight": (2, 1, 3, 3), "0.bias": (2,), "2.weight": (4, 8), "2.bias": (4,)}
    shapes |= {"3.weight": (4, 4), "3.bias": (4,), "4.weight": (4, 4), "4.bias": (4,)}
    fewer = {**dense("Conv_0", 3, 3, 1, 2), **dense("Dense_0", 8, 4), **dense("Dense_1", 4, 4)}
    eleven = {f"{number}.scale": (4,) for number in range(11)}  # m10 is behind m9
    net: Any = {"net.attn.in_proj_weight": (18, 5), "net.attn.out_proj.weight": (5, 6)}
    net |= {"net.q_proj.weight": (6, 5), "net.bn.running_var": (6,), "net.bn.running_mean": (6,)}
    net |= {"net.q_proj.bias": (6,), "net.attn.in_proj_bias": (18,)}
    net |= {"net.up.weight": (7, 8, 2), "net.head.weight": (3, 7)}
    net |= {"net.norm1.weight": (4,), "net.norm2.weight": (4,)}  # which their names alone tell
    three = [f"attn/{name}" for name in ("query", "key", "value")]
    params: Any = {f"{name}/bias": (2, 3) for name in [*three, "q_proj"]}
    params |= {f"{name}/kernel": (5, 2, 3) for name in [*three, "q_proj"]}
    params |= {"attn/out/kernel": (2, 3, 5), "head/kernel": (7, 3)}
    params |= {"batch_stats/bn/mean": (6,), "batch_stats/bn/var": (6,)}
    params |= {"norm2/scale": (4,), "norm1/scale": (4,), "ConvTranspose_0/kernel": (2, 8, 7)}
    other: Any = {"emb.weight": (7, 4), "c3.weight": (2, 3, 1, 1, 1), "in_proj_weight": (12, 4)}
    other |= {"odd.weight": (3, 5), "mean": (4,), "bn.num_batches_tracked": ()}
    likes: Any = {"emb/embedding": (7, 4), "c3/kernel": (1, 1, 1, 3, 2), "odd/kernel": (3, 5)}
    likes |= {f"{part}/kernel": (4, 4) for part in "qkv"} | {"mean": (4,), "lone": (9,)}
    several = torch_checkpoint(saved(), "file")
    recorded("drafts.txt", {
        "dense layers after a convolution": draft(shapes, {**fewer, **dense("Dense_10", 4, 4)}),
        "more tensors than places": draft(shapes, fewer),
        "two places": draft({"a.scale": (4,)}, {"x/scale": (4,), "y/scale": (4,)}),
        "numbers": draft(eleven, {f"m{number}/scale": (4,) for number in range(11)}),
        "attention": draft(net, params),
        "other layers": draft(other, likes),
        "one of several": draft_names(several, template(), is_one_of_several=True),
    })  # fmt: skip
