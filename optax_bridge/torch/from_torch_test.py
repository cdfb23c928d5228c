"""From an optimizer of PyTorch, as text or as an object, to its Optax equal."""

import inspect
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_bridge import TrainState, UnsupportedSetting, from_torch
from optax_bridge.correspondence import TORCH, choose_recipe
from optax_bridge.correspondence.expression import ExpressionError
from optax_bridge.correspondence.recipe import render
from optax_bridge.recorded_test import refused
from optax_bridge.torch import AdamW, torch_definition
from optax_bridge.torch.arithmetic import Kernels
from optax_bridge.torch.schedules import SCHEDULERS

PARAMS = {"layer": {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}}


def _step(tx: Any) -> Any:
    state = TrainState.create(apply_fn=None, params=PARAMS, tx=tx)
    return state.apply_gradients(grads=jax.tree.map(jnp.ones_like, PARAMS)).params


def test_text_in_any_of_its_forms_and_a_definition_are_the_same_optimizer():
    for optimizer in (
        "torch.optim.AdamW(lr=1e-2, betas=(0.8, 0.9))",
        "AdamW(model.parameters(), 1e-2, (0.8, 0.9))",
        "optim.AdamW(params, lr=0.01, betas=(0.8, 0.9), weight_decay=1e-2)",
        AdamW(lr=1e-2, betas=(0.8, 0.9)),
    ):
        tx: Any = from_torch(optimizer)
        assert (tx.hyper_params["betas"], tx.hyper_params["lr"]) == ((0.8, 0.9), 0.01)


def test_subnormal_numbers_of_float16_are_rounded_the_same_when_compiled():
    kernels = Kernels("float16")
    with jax.enable_x64(True):
        x = np.append(np.linspace(-7e-5, 7e-5, 999), 2.0**-25 * np.array([1, 3, 1.001]))
        scaled = jax.jit(lambda x: kernels.mul(kernels.nearest(x), 2.0**20))(x)
    np.testing.assert_array_equal(scaled, np.float64(np.float16(x)) * 2.0**20)


@pytest.mark.parametrize(
    ("size", "expected"), [(1e-20, [-0.01, -0.022, -0.0364]), (1e-23, [-0.01, -0.02, -0.03])]
)
def test_rprop_sees_the_sign_of_products_that_are_subnormal(size: float, expected: list[float]):
    """Numbers of PyTorch 2.13: 1e-40 is above 0 there, and 1e-46 is 0."""
    tx: Any = from_torch("Rprop(lr=1e-2)")
    state: Any = TrainState.create(apply_fn=None, params=jnp.zeros(2), tx=tx)
    for value in expected:
        state = state.apply_gradients(grads=jnp.array([size, -size], jnp.float32))
        np.testing.assert_allclose(state.params, [value, -value], rtol=1e-6)
    back = state.apply_gradients(grads=jnp.array([-1e-20, 1e-20], jnp.float32))
    np.testing.assert_array_equal(back.params, state.params)


def test_a_traced_weight_interpolates_from_the_same_end():
    kernels = Kernels("float32")
    with jax.enable_x64(True):
        ends = np.random.default_rng(0).standard_normal((2, 999)).astype(np.float32)
        start, end = map(jnp.asarray, ends.astype(float))
        for weight in (0.3, 0.7):
            traced = jax.jit(kernels.lerp)(start, end, weight)
            np.testing.assert_array_equal(traced, kernels.lerp(start, end, weight))


def test_numbers_of_asgd_are_in_float32():
    state: Any = from_torch("ASGD()").init(jnp.ones((), jnp.bfloat16))
    assert (state.mu.dtype, state.ax.dtype) == (jnp.float32, jnp.bfloat16)


@pytest.mark.parametrize("exact", [True, False])
def test_the_rate_may_be_a_schedule(exact: bool):
    tx = from_torch("AdamW()", lr=lambda count: 0.5 / (count + 1), exact=exact)
    fixed = from_torch("AdamW(lr=0.5)", exact=exact)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6), _step(tx), _step(fixed))
    state = TrainState.create(apply_fn=None, params=PARAMS, tx=from_torch("AdamW()", lr=0.25))
    assert state.learning_rate == 0.25
    state.apply_gradients(grads=PARAMS, lr=0.5)
    still: Any = from_torch("AdamW()", lr=0.0)
    assert still.hyper_params["lr"] == 0.0


@pytest.mark.parametrize(
    ("optimizer", "error", "message"),
    [
        ("LBFGS(params)", ExpressionError, r"optax.lbfgs\(\) is the same method"),
        ("SparseAdam(params)", ExpressionError, "JAX has dense gradients"),
        ("AdamW(lr=rate)", ExpressionError, "lr=rate is not a value.* may be given as lr="),
        ("AdamW(1e-3)", ExpressionError, "takes the parameters"),
        ("AdamW([{'params': a, 'lr': 1}])", ExpressionError, "optax_bridge.multi_optimizer"),
        ("optax.adamw(1e-3)", ExpressionError, "is not the AdamW of torch.optim"),
        ("SGD(nesterov=True)", ValueError, "a momentum above 0 and no dampening"),
        ("SGD(momentum=0.9, dampening=0.1, nesterov=True)", ValueError, "and no dampening, found"),
        ("Rprop(etas=(1.0, 1.2))", ValueError, "etas below 1 and above it"),
        (optax.adam(1e-3), TypeError, "expected a constructor call as text"),
        (type("AdamW", (), {"param_groups": []})(), TypeError, r"found optax_bridge.*\.AdamW"),
        ("AdamW(betas=(0.9, 0.99, 0.5))", ExpressionError, "a tuple of 2, each a number from 0"),
    ],
)
def test_what_cannot_be_taken_over_says_what_to_do(
    optimizer: Any, error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        from_torch(optimizer)


def test_what_decides_no_more_than_rounding_is_said_and_another_optimizer_refused():
    with pytest.raises(UnsupportedSetting, match="before its bias correction"):
        from_torch("Adam(amsgrad=True)", exact=False)
    with pytest.warns(UserWarning, match=r"torch.optim.AdamW\(fused=True\): PyTorch then runs"):
        from_torch("AdamW(params, fused=True)")
    from_torch("AdamW(params, foreach=None, fused=False)")


@pytest.mark.parametrize("name", TORCH)
def test_steps_of_every_case_are_pytorchs(name: str):
    torch, entry = pytest.importorskip("torch"), TORCH[name]
    start, *grads = np.random.default_rng(0).standard_normal((8, 4, 3)).astype(np.float32)
    for case in entry.cases:
        param = torch.nn.Parameter(torch.tensor(start))
        settings = {entry.rate: 0.5, **case.settings}
        optimizer = getattr(torch.optim, entry.legacy.__name__)([param], **settings)
        tx: Any = from_torch(optimizer)
        new, state = jnp.asarray(start), tx.init(start)
        for grad in grads:
            param.grad = torch.tensor(grad)
            optimizer.step()
            new, state = tx.step(grad, state, new)
        fields = {"param": param.detach(), **optimizer.state[param]}
        for field in fields.keys() & {"param", "ax"}:
            actual = new if field == "param" else getattr(state, field)
            scale = np.abs([start, fields[field]]).max()  # with 0.5 the parameters grow
            limit = (entry.exactness.ulp or 0) * np.spacing(scale)  # as it is claimed
            np.testing.assert_allclose(actual, fields[field], 0, limit, err_msg=f"{case}")


def test_every_constructor_takes_what_pytorchs_takes():
    torch = pytest.importorskip("torch")
    named = {name for name in dir(torch.optim) if name[0].isupper()} - {"Optimizer"}
    classes = {entry.legacy.__name__: entry for entry in TORCH.values()}
    named |= set(torch.optim.lr_scheduler.__all__) - {"LRScheduler"}
    assert named == {*classes, *TORCH.without_entry}
    for name, entry in classes.items():
        genuine = inspect.signature(getattr(torch.optim, name)).parameters
        own = {hp.legacy: hp.default for hp in entry.hyper_params}
        assert set(genuine) - set(own) <= set(entry.extra_arguments), name
        assert {key: genuine[key].default for key in own} == own, name
    for name, maker in SCHEDULERS.items():
        genuine = inspect.signature(getattr(torch.optim.lr_scheduler, name)).parameters
        _, *arguments = inspect.signature(maker).parameters.values()  # the first one is the rate
        assert all(arg.default == genuine[arg.name].default for arg in arguments), name


def optimizer_of(name: str, *groups: dict[str, Any]) -> Any:
    """As far as an optimizer of PyTorch is read: its class, and the settings of its groups."""
    optimizer: Any = type(name, (), {"__module__": "torch.optim"})()
    optimizer.param_groups = [{"params": [], "foreach": None, **group} for group in groups]
    return optimizer


def test_groups_of_an_optimizer_become_groups_where_their_paths_are_said():
    kernels = {"lr": np.float32(0.5), "betas": [0.5, 0.75], "weight_decay": 0.01, "fused": True}
    optimizer = optimizer_of("AdamW", kernels, kernels, {**kernels, "weight_decay": 0.0})
    with pytest.warns(UserWarning, match=r"AdamW\(fused=True\)"):
        with refused(ValueError, r"which differ in weight_decay, .*groups=\("):
            from_torch(optimizer)
        groups, rates = ("/nothing", "*/kernel", "*/bias"), [0.125, 0.5, 0.25]
        definition: Any = torch_definition(optimizer, groups=groups, lr=rates)
        strict = from_torch(optimizer, groups=groups)
        same: Any = from_torch(optimizer_of("AdamW", kernels, kernels))
        alike: Any = torch_definition(optimizer_of("AdamW", kernels, kernels), groups=groups[1:])
    assert len(alike.sub_optimizers) == 2  # as they are asked for
    settings = [(each.lr, each.weight_decay) for each in definition.sub_optimizers]
    assert settings == [(0.125, 0.01), (0.5, 0.01), (0.25, 0.0)]
    with refused(ValueError, r"groups\[0\]: expected 1 or more, found 0 of the 2 "):
        strict.init(PARAMS)
    optimizer = optimizer_of("SGD", {"lr": 0.5, "params": [0, 1]}, {"lr": 0.1, "params": [2]})
    message = r"groups\[0\]: expected 2, as PyTorch's group has, found 1.* group: /layer/bias"
    for exact in (True, False):
        narrow = from_torch(optimizer, groups=("/layer/kernel", "/head"), exact=exact)
        with refused(ValueError, message):
            narrow.init({**PARAMS, "head": jnp.ones(2)})
        narrow.init({"layer": {"kernel": jnp.ones((2, 3))}, "head": jnp.ones(2)})  # fused, say
    assert same.hyper_params["betas"] == (0.5, 0.75) and type(same.hyper_params["lr"]) is float
    for count in (2, 4):
        with refused(ValueError, f"one for each of 3 groups, found {count}"):
            from_torch(optimizer_of("SGD", {}, {}, {}), lr=[0.5] * count)


def test_an_attached_scheduler_is_not_taken_for_a_constant_rate():
    optimizer = optimizer_of("AdamW", {"lr": 1e-4}, {"lr": 1e-4, "initial_lr": 1e-3})
    with refused(ValueError, r"lr=optax_bridge.torch.from_torch_schedule\(scheduler\)"):
        from_torch(optimizer)
    tx: Any = from_torch(optimizer, lr=0.25)
    assert tx.hyper_params["lr"] == 0.25
    optimizer.param_groups[1] |= {"base_momentum": 0.85}
    with refused(ValueError, r"changes the momentum .*betas=function"):
        from_torch(optimizer, lr=0.1)


@pytest.mark.parametrize("name", TORCH)
def test_public_recipes_have_the_sign_and_the_decay(name: str):
    entry = TORCH[name]
    own = {hp.legacy for hp in entry.hyper_params}
    for maximize, decay in itertools.product((False, True), (0.0, 0.125)):
        settings = {"maximize": maximize, "weight_decay": decay}
        settings = {key: value for key, value in settings.items() if key in own}
        if entry.optax:
            text = render(choose_recipe(entry.legacy(**settings), "optax").call)
            assert text.count("optax.scale(-1.0)") == settings.get("maximize", False), text
            assert ("0.125" in text) == bool(settings.get("weight_decay")), text
            if "add_decayed" in text.partition("optax.scale(-1.0)")[0]:
                assert "optax.scale(-1.0)" not in text  # which comes first: no decay is climbed
