"""Optimizers of other frameworks as sides."""

import sys
from typing import Any

import jax.example_libraries.optimizers as example
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from equivalence_tests import (
    EquivalenceError,
    Verdict,
    check_equivalence,
    keras_side,
    torch_side,
)
from equivalence_tests.sides import frameworks

NO_CLASS: Any = "AdamW"
PARAMS = {
    "w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
    "scalar": np.float32(0.5),
    "half": np.ones(2, jnp.bfloat16),
}
RATE = 0.01


def test_pytorch_s_adamw_is_optax_s_but_for_rounding():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    side = torch_side(torch.optim.AdamW, lr=RATE, weight_decay=0.1)
    assert side.source == "torch.optim.AdamW(lr=0.01, weight_decay=0.1)"
    report = check_equivalence(side, optax.adamw(RATE, weight_decay=0.1), PARAMS, steps=24)
    assert report.verdict is Verdict.ROUNDING, report
    assert report.kinds[0] == "AdamW"
    same = check_equivalence(side, side, PARAMS, steps=4)  # a second run starts anew
    assert same.verdict is Verdict.IDENTICAL
    assert same.state_compared


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: torch_side(t.optim.AdamW, learning_rate=1), "unexpected keyword argument"),
        (lambda t: torch_side(t.optim.SGD, lr=-1), "Invalid learning rate"),
        (lambda t: torch_side(t.optim.AdamW([t.zeros(1)])), r"write torch_side\(AdamW, lr=...\)"),
        (lambda t: torch_side(t.nn.ReLU), "torch_side: ReLU"),
        (lambda t: torch_side(NO_CLASS), "expected a class of torch.optim, found str"),
        (lambda t: check_equivalence(t.optim.SGD, optax.sgd(1), PARAMS), r"write torch_side\(SGD"),
        (
            lambda t: check_equivalence(t.optim.SGD([t.zeros(1)]), optax.sgd(1), PARAMS),
            r"a PyTorch SGD with tensors of its own: write torch_side\(SGD, lr=...\)",
        ),
    ],
    ids=["argument", "value", "instance", "module", "text", "class as side", "instance as side"],
)
def test_what_is_no_pytorch_side_is_said(call, message):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(EquivalenceError, match=message):
        call(torch)


def test_without_pytorch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    with pytest.raises(EquivalenceError, match="install it with `pip install torch`"):
        torch_side(object, lr=1)


def test_an_optimizer_of_jax_s_examples_is_a_side_as_it_is():
    params = {name: PARAMS[name] for name in ("w", "scalar")}
    report = check_equivalence(example.adam(RATE), optax.adam(RATE), params, steps=16)
    assert report.verdict is not Verdict.DIFFERENT, report
    assert report.kinds[0] == "adam"
    other = check_equivalence(example.sgd(RATE), optax.sgd(2 * RATE), params, steps=4)
    assert other.verdict is Verdict.DIFFERENT


KERAS_PARAMS = {"w": PARAMS["w"], "b": np.float32(0.5)}


def test_keras_s_sgd_is_optax_s_but_for_rounding(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras", reason="Keras is not installed")
    side = keras_side(keras.optimizers.SGD, 0.01)
    report = check_equivalence(side, optax.sgd(0.01), KERAS_PARAMS, steps=8)
    assert report.verdict is not Verdict.DIFFERENT, report
    other = check_equivalence(side, optax.sgd(0.02), KERAS_PARAMS, steps=2)
    assert other.verdict is Verdict.DIFFERENT
    assert frameworks.is_keras_optimizer(keras.optimizers.SGD)
    with pytest.raises(EquivalenceError, match=r"keras_side: SGD raised .*lr"):
        keras_side(keras.optimizers.SGD, lr=0.01)


def test_without_keras_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setitem(sys.modules, "keras", None)  # as where it is not installed
    with pytest.raises(EquivalenceError, match="install it with `pip install keras`"):
        keras_side(object)
