"""Optimizers of PyTorch as sides."""

import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from equivalence_tests import EquivalenceError, Verdict, check_equivalence, torch_side

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
        (lambda t: torch_side(t.optim.AdamW([t.zeros(1)])), "found AdamW; write"),
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
