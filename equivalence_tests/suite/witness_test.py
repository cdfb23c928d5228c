"""The exact recipes follow their libraries as their entries say: recorded, and live."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from equivalence_tests.compare.comparison import compare
from equivalence_tests.recordings.format import Recording
from equivalence_tests.recordings.replay import Stepper
from equivalence_tests.suite import witness
from equivalence_tests.suite.witness import DTYPES, RECORDED, WitnessCheck
from optax_bridge.correspondence import TORCH, Entry, Verdict, all_entries, choose_recipe
from optax_bridge.correspondence.recipe import build
from optax_bridge.torch import from_torch_schedule

_LIVE = [*TORCH] if witness.is_installed(TORCH) else []
each_of_torch = pytest.mark.parametrize("name", TORCH)


def _assert_as_claimed(entry: Entry, run: Recording, here: dict[str, np.ndarray]) -> None:
    comparison = compare(run.stacks("new_params"), here, poisoned={"params": 10})
    verdict = comparison.verdict(entry.exactness)
    assert verdict is not Verdict.DIFFERENT, (comparison.first, comparison.ulp)


@each_of_torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_recipes_follow_the_recordings(name: str, dtype: str):
    """Eagerly, which takes a third of the time: compiled steps have the same bits, see below."""
    entry = TORCH[name]
    for index in range(len(entry.cases)):
        run = witness.recordings()[witness.case_name(entry, index, dtype)]
        definition = entry.legacy(**witness.case_settings(entry, index))
        stepper = Stepper(build(choose_recipe(definition, "exact").call), run)
        stepper.step = stepper.side.step
        _assert_as_claimed(entry, run, stepper.run(lockstep=False))


@pytest.mark.parametrize("name", _LIVE)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_library_computes_what_was_recorded(name: str):
    entry = TORCH[name]
    for index in range(len(entry.cases)):
        run = witness.recordings()[witness.case_name(entry, index, "float32")]
        here = witness.genuine(entry, witness.case_settings(entry, index), run)
        _assert_as_claimed(entry, run, here.stacks("new_params"))


@pytest.mark.parametrize("name", ["torch.adamw", "torch.rmsprop"])
def test_public_optax_is_as_near_as_claimed(name: str):
    entry, check = TORCH[name], WitnessCheck(name, 0, "float32", RECORDED, "optax")
    settings = witness.case_settings(entry, 0)
    choice = choose_recipe(entry.legacy(**settings), "optax")
    comparison = witness.comparison_of(entry, settings, check, choice.call)
    assert comparison.verdict(choice.claim) is Verdict.ROUNDING, comparison.first


@each_of_torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_eager_and_compiled_steps_have_the_same_bits(name: str, dtype: str):
    entry = all_entries()[name]
    definition = entry.legacy(**witness.case_settings(entry, 0))
    run = witness.recordings()[witness.case_name(entry, 0, dtype)]
    # One leaf, as eager steps compile each operation for each shape.
    steps = [
        replace(step, trees={
            tree: {path: leaf for path, leaf in flat.items() if path == ("kernel",)}
            for tree, flat in step.trees.items() if tree in ("params", "grads", "new_params")
        })
        for step in run.steps
    ]  # fmt: skip
    stepper = Stepper(build(choose_recipe(definition, "exact").call), replace(run, steps=steps))
    compiled = stepper.run(lockstep=False)
    stepper.step = stepper.side.step
    assert compare(stepper.run(lockstep=False), compiled).identical


@pytest.mark.parametrize("index", range(len(witness.SCHEDULERS)))
def test_schedules_are_pytorchs_from_the_first_step_on(index: int):
    text = witness.SCHEDULERS[index]
    expected = witness.rates(witness.recordings()[f"schedule-{index}"])
    schedule: Any = from_torch_schedule(text, lr=witness.RATE)
    rates = [float(schedule(count)) for count in range(witness.EPOCHS)]
    np.testing.assert_allclose(rates, expected, rtol=6e-8)  # half a ULP of float32
    by_epoch: Any = from_torch_schedule(text, lr=witness.RATE, steps_per_epoch=3)
    assert [float(by_epoch(count)) for count in range(9)] == [r for r in rates[:3] for _ in "abc"]
    if witness.is_installed(TORCH):
        assert witness.rates(witness.genuine_schedule(text)) == expected


def test_an_unknown_name_is_refused_and_names_may_be_short():
    assert {check.entry for check in witness.witness_checks(TORCH, ["AdamW"])} == {"torch.adamw"}
    with pytest.raises(ValueError, match="no optimizer of PyTorch is called adamv; is adam meant"):
        witness.witness_checks(TORCH, ["adamv"])
