"""A sample; `python -m tools.prover_fuzz` runs as many as wanted."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equivalence_tests.sides.precision import float64
from tools import prover_fuzz


def test_rewrites_are_proved_and_no_fault_that_runs_tell_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    sample = ["prover_fuzz", "--faults", "8", "--rewrites", "12", "--seed", "3"]
    monkeypatch.setattr(sys, "argv", sample)
    assert prover_fuzz.main() == 0
    assert "faults that runs tell apart: " in capsys.readouterr().out
    monkeypatch.setattr(prover_fuzz, "rewrites", lambda *_: [("one", "other", "not decided")])
    for verdict in (prover_fuzz.IDENTICAL, prover_fuzz.REALS, prover_fuzz.DIFFERENT):
        for differs in (False, True):
            rows = [("adam", "a planted fault", differs, verdict)]
            monkeypatch.setattr(prover_fuzz, "faults", lambda *_, rows=rows: rows)
            assert prover_fuzz.main() == 1
            out, proved = capsys.readouterr().out, differs and verdict != prover_fuzz.DIFFERENT
            assert ("PROVED: adam: a planted fault" in out) == proved
            assert "NOT DECIDED: one and other" in out and f" {1 + proved} wrong" in out


# Of two steps of sgd with a count of them: the new parameter, from gradient, count, parameter.
STEPS: dict[str, tuple[Callable[..., Any], bool]] = {
    "the same": (lambda g, n, p: p - 0.1 * g, False),
    "rounding": (lambda g, n, p: (p - 0.1 * g) * (1 + 1e-12), False),
    "a millionth": (lambda g, n, p: (p - 0.1 * g) * (1 + 1e-6), True),
    "later": (lambda g, n, p: p - 0.1 * g - jnp.where(n == 3, 1e-3, 0), True),
    "not a number": (lambda g, n, p: jnp.where(g > 0, jnp.nan, p - 0.1 * g), True),
    "infinite": (lambda g, n, p: jnp.where(g > 0, jnp.inf, p - 0.1 * g), True),
    "one sign": (lambda g, n, p: jnp.where(g > 0, p - 0.1 * g, p + 0.1 * g), True),
}


def test_runs_tell_apart_all_but_rounding():
    def traced(rule: Callable[..., Any]) -> Any:
        def step(*args: Any) -> Any:
            *grads, count, b, k = args
            return [rule(grads[0], count, b), rule(grads[1], count, k), count + 1]

        return jax.make_jaxpr(step)(*PARAMS, jnp.zeros(()), *PARAMS)

    with float64():
        PARAMS = [jnp.asarray(leaf) for leaf in prover_fuzz.PARAMS.values()]
        one = jax.tree.structure(0.0)
        for name, (rule, differs) in STEPS.items():
            sides = [traced(STEPS["the same"][0]), traced(rule)]
            for first, second in (sides, sides[::-1]):
                tx = prover_fuzz.Optimizer(lambda params: jnp.zeros(()), first, one)
                rng = np.random.default_rng(0)
                assert prover_fuzz.differ_in_runs(tx, second, rng) == differs, name
