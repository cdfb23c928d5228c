"""The settings that explain a difference, of sides that are named and of objects."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
from equivalence_tests.pair.equivalence import check_equivalence
from equivalence_tests.pair.explanation import explanation
from equivalence_tests.pair.named import NamedSide, ObjectSide, named_pair

PARAMS = {"w": np.linspace(-1, 1, 5, dtype=np.float32)}
compared = functools.partial(check_equivalence, params=PARAMS, steps=24)


def in_pairs(rate: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> Any:
    return optax.adam(rate, *betas, eps)


def one_by_one(rate: float, b1: float = 0.9, b2: float = 0.999) -> Any:
    return optax.adam(rate, b1, b2)


def with_a_setting_that_does_nothing(rate: float, b1: float = 0.9, b2: float = 0.999,
                                     decay: float = 0.0) -> Any:  # fmt: skip
    return optax.adam(rate, b1, b2)


def with_eps_in_the_root(rate: float, eps: float) -> Any:
    return optax.adam(rate, eps=0.0, eps_root=eps)


NAMED = {
    "epsilon in the root": (
        (f"{__name__}:with_eps_in_the_root", "0.1, 1e-2"),
        ("optax:adam", "0.1, eps=1e-2"),
    ),
    "without what does not matter": (
        (f"{__name__}:with_a_setting_that_does_nothing", "0.1, b1=0.8, b2=0.9, decay=0.5"),
        (f"{__name__}:with_a_setting_that_does_nothing", "0.1"),
    ),
    "names and nesterov": (
        ("legacy_optim:Momentum", "0.1, beta=0.8, nesterov=True"),
        ("optax:sgd", "0.1"),
    ),
    "rate": (("GradientDescent(0.1)", ""), ("optax.sgd(0.2)", "")),
    "coupled decay": (
        ("legacy_optim:Momentum", "0.1, weight_decay=0.5"),
        ("optax:sgd", "0.1, 0.9"),
    ),
    "coupled decay in place of another": (
        ("Momentum(0.1, weight_decay=0.5)", ""),
        ("optax.chain(optax.sgd(0.1, 0.9), optax.add_decayed_weights(0.5))", ""),
    ),
    "epsilon": (("legacy_optim:RMSProp", "0.1"), ("optax:rmsprop", "0.1")),
    "of a tuple": (("optax:adam", "0.1, b1=0.8, b2=0.99"), (f"{__name__}:in_pairs", "0.1")),
    "to a tuple": ((f"{__name__}:one_by_one", "0.1, b2=0.9"), (f"{__name__}:in_pairs", "0.1")),
    "decay that the other has not": (
        ("legacy_optim:Adam", "0.001, weight_decay=1e-4"),
        ("optax:adam", "0.001"),
    ),
}


@pytest.mark.parametrize("case", NAMED)
def test_arguments_of_a_named_side_explain_a_difference(case: str, recorded: Any):
    text = explanation(*named_pair(*NAMED[case]), compared)
    recorded("explanation.txt", {case: str(text).replace(f"{__name__}:", "")}, some=True)


def decayed_adam(gradients: Any, state: Any, params: Any) -> Any:
    """An Adam as people write it, its numbers in the code."""

    def leaf(p: Any, g: Any, m: Any, v: Any) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        unbiased = m / (1 - 0.9**t), v / (1 - 0.999**t)
        return p - 1e-3 * (unbiased[0] / (jnp.sqrt(unbiased[1]) + 1e-8) + 0.01 * p), m, v

    t = state[0] + 1
    rows = jax.tree.map(leaf, params, gradients, *state[1:])
    params, m, v = (jax.tree.map(lambda _, row, i=i: row[i], params, rows) for i in range(3))
    return params, (t, m, v)


def zeros(params: Any) -> Any:
    return jnp.zeros([]), *(jax.tree.map(jnp.zeros_like, params) for _ in range(2))


OBJECTS = {
    "a definition": legacy_optim.Adam(1e-3, weight_decay=0.01),
    "a transformation": optax.adamw(1e-3, weight_decay=0.01),
    "functions with numbers in their code": (zeros, decayed_adam),
}


@pytest.mark.parametrize("case", OBJECTS)
def test_an_adam_of_whatever_kind_against_adamw_misses_its_decay(case: str, recorded: Any):
    sides = ObjectSide("mine", OBJECTS[case]), ObjectSide("adamw", optax.adamw(1e-3))
    recorded("explanation.txt", {case: explanation(*sides, compared)}, some=True)


def test_a_rate_that_has_the_sign_of_the_step_keeps_it():
    named, _ = named_pair(("optax.sgd(0.2)", ""), ("optax.sgd(0.2)", ""))
    text = str(explanation(named, ObjectSide("mine", optax.sgd(0.1)), compared))
    assert text.endswith("step_size=-0.2 (as learning_rate=0.2 of optax:sgd)"), text


def tensorflow_s_adam(rate: float, eps: float) -> Any:
    """Section 2 of Kingma and Ba, arXiv:1412.6980, the order of computation that is faster."""

    def step(grads: Any, state: Any, params: Any) -> Any:
        count, mean, square = state
        count, mean = count + 1, optax.tree.update_moment(grads, mean, 0.9, 1)
        square = optax.tree.update_moment(grads, square, 0.999, 2)
        size = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        moved = jax.tree.map(lambda m, v: size * m / (jnp.sqrt(v) + eps), mean, square)
        return jax.tree.map(jnp.subtract, params, moved), (count, mean, square)

    return (lambda params: (jnp.int32(0), *(jax.tree.map(jnp.zeros_like, params),) * 2)), step


@pytest.mark.parametrize("eps", [1e-3, 1e-2], ids=["the same epsilon", "another"])
def test_tensorflow_s_adam_adds_its_epsilon_before_the_bias_correction(eps: float, recorded: Any):
    sides = tensorflow_s_adam(0.1, eps), optax.adam(0.1, eps=1e-3)
    assert compared(*sides).verdict.value == "different"
    left, right = ObjectSide("tensorflow", sides[0]), ObjectSide("optax", sides[1])
    text = explanation(left, right, compared)
    recorded("explanation.txt", {f"epsilon of {eps}": text}, some=True)


def test_a_copy_with_other_settings_leaves_the_object_as_it_is():
    side = ObjectSide("adamw", optax.adamw(1e-3))
    assert side.parameters["weight_decay"] == 1e-4
    changed = ObjectSide("changed", side.build(weight_decay=0.5, b1=0.8))
    assert (changed.parameters["weight_decay"], changed.parameters["b1"]) == (0.5, 0.8)
    assert side.parameters["weight_decay"] == 1e-4
    step = lambda grads, state, params, *, rate=0.1, flag=True: (params, state)  # noqa: E731
    own = ObjectSide("own", (zeros, step))
    assert ObjectSide("", own.build(rate=0.2)).parameters == own.parameters | {"rate": 0.2}
    pair = side.build(weight_decay=0.5), optax.adamw(1e-3, weight_decay=0.5)
    assert compared(*pair).verdict.value == "identical"


def test_a_copy_of_an_object_with_other_settings_leaves_it_as_it_is():
    side = ObjectSide("momentum", legacy_optim.Momentum(0.1))
    changed = ObjectSide("changed", side.build(beta=0.5))
    assert (side.parameters["beta"], changed.parameters["beta"]) == (0.9, 0.5)
    both = ObjectSide("both", optax.chain(optax.scale_by_adam(b1=0.9), optax.scale_by_adam(b1=0.8)))
    changed = ObjectSide("changed", both.build(b1=0.5))
    assert [changed.parameters[name] for name in ("b1", "b1#2")] == [0.5, 0.8]


def test_a_setting_that_explains_the_first_steps_alone_explains_nothing():
    late = optax.sgd(lambda count: jnp.where(jnp.less(count, 20), 0.1, 0.2))
    sides = ObjectSide("late", late), *named_pair(("optax.sgd(0.3)", ""), ("optax.sgd(0.3)", ""))
    assert explanation(*sides[:2], compared) is None


def test_what_no_setting_explains_is_left_unexplained():
    sides = named_pair(("optax.sign_sgd(0.1)", ""), ("optax.sgd(0.1)", ""))
    assert explanation(*sides, functools.partial(compared, steps=4)) is None


def test_a_function_that_says_nothing_of_its_arguments_has_none_to_vary():
    assert NamedSide("builtins:dict", dict, kwargs={"a": 1}).parameters == {}
    assert NamedSide("my_pair:adam", None, 3).parameters == {}


def test_pytorch_s_rmsprop_differs_in_two_settings():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    sides = named_pair(("torch.optim:RMSprop", "lr=0.1"), ("optax:rmsprop", "0.1"))
    text = str(explanation(*sides, compared))
    assert "with optax.rmsprop(learning_rate=0.1, decay=0.99, eps_in_sqrt=False)" in text
