"""Optimizers of Keras as sides."""

import sys

import numpy as np
import optax
import pytest

from equivalence_tests import EquivalenceError, Verdict, check_equivalence, keras_side
from equivalence_tests.sides.frameworks import keras as keras_sides

PARAMS = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "b": np.float32(0.5)}


def test_keras_s_sgd_is_optax_s_but_for_rounding(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras", reason="Keras is not installed")
    side = keras_side(keras.optimizers.SGD, 0.01)
    report = check_equivalence(side, optax.sgd(0.01), PARAMS, steps=8)
    assert report.verdict is not Verdict.DIFFERENT, report
    other = check_equivalence(side, optax.sgd(0.02), PARAMS, steps=2)
    assert other.verdict is Verdict.DIFFERENT
    assert keras_sides.is_keras_optimizer(keras.optimizers.SGD)
    with pytest.raises(EquivalenceError, match=r"keras_side: SGD raised .*lr"):
        keras_side(keras.optimizers.SGD, lr=0.01)


def test_without_keras_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setitem(sys.modules, "keras", None)  # as where it is not installed
    with pytest.raises(EquivalenceError, match="install it with `pip install keras`"):
        keras_side(object)
