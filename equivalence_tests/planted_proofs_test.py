"""The suite's planted faults: none is proved."""

import importlib
from typing import Any

import jax.numpy as jnp
import pytest

import legacy_optim
from equivalence_tests.proof import ProofError, prove_equivalence
from equivalence_tests.proof.result import DIFFERENT, IDENTICAL, UNDECIDED
from equivalence_tests.sides.side import Side
from equivalence_tests.suite.matrix import sides
from equivalence_tests.suite.matrix.cases import MatrixCase
from equivalence_tests.suite.mutations_test import FAULTS, Fault
from equivalence_tests.suite.mutations_test import faulty as faulty

# One in eight; `pytest --equivalence-full` proves none of all of them.
SAMPLE = FAULTS[3::8]
PARAMS = {"b": jnp.ones(3), "k": jnp.ones((4, 3))}


def verdict(package: Any, case: MatrixCase) -> str:
    """What is proved of a package's transformation and the legacy optimizer."""
    definition = sides.definition(case, sides.schedule(case))
    tx = package.from_legacy(definition)
    params = {name: leaf.astype(case.dtype) for name, leaf in PARAMS.items()}
    if case.rate == "constant":  # then the state map is held to as well

        def relation(carry: Any) -> Any:
            old = legacy_optim.Optimizer(definition, carry[1], carry[0])
            conversion = importlib.import_module(f"{package.__name__}.legacy")
            return carry[1].step, carry[0], conversion.to_optax(old)[1]

        try:
            return prove_equivalence(definition, tx, params, relation=relation).verdict
        except ProofError:  # a fault may keep a side from being traced
            return UNDECIDED
    real = sides.right(case)
    other = Side(
        "exact",
        lambda params: package.TrainState.create(apply_fn=None, params=params, tx=tx),
        real.step,
        lambda state: {"params": state.params},
    )
    try:
        return prove_equivalence(_functions(sides.left(case)), _functions(other), params).verdict
    except ProofError:
        return UNDECIDED


def _functions(side: Side) -> tuple[Any, Any]:
    def step(grads: Any, state: Any, params: Any) -> Any:
        del params
        new = side.step(state, grads, 0.05)
        return side.view(new)["params"], new

    return side.init, step


@pytest.fixture
def wanted(request: pytest.FixtureRequest, fault: Fault) -> None:
    if fault not in SAMPLE and not request.config.getoption("--equivalence-full"):
        pytest.skip("a sample is proved; --equivalence-full proves all")


@pytest.mark.parametrize(
    ("faulty", "fault"),
    [(fault, fault) for fault in FAULTS],
    indirect=["faulty"],
    ids=[*map(str, FAULTS)],
)
def test_a_planted_fault_is_not_proved(wanted: None, faulty: Any, fault: Fault):
    assert verdict(faulty, fault.case) in (DIFFERENT, UNDECIDED)


@pytest.mark.parametrize(
    "case", [MatrixCase("adam", 1), MatrixCase("momentum", rate="per-group")], ids=str
)
def test_without_a_fault_it_is(case: MatrixCase):
    import optax_bridge

    assert verdict(optax_bridge, case) == IDENTICAL
