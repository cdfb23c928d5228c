"""The measurement runs and says what it is asked; how fast anything is, is no matter for a test."""

import json

import jax.numpy as jnp
import pytest

from benchmarks import problem, step_time, timing
from optax_bridge.correspondence import ENTRIES

TINY = problem.transformer_tree(layers=1, width=4, vocabulary=8)


def test_the_standard_tree_is_of_the_size_that_the_readme_names():
    tree = problem.transformer_tree()
    assert 2e6 < problem.size(tree) < 3e6
    assert tree["block_1"]["mlp"]["up"]["kernel"].shape == (256, 1024)


def test_one_optimizer_is_measured_and_written(tmp_path, capsys):
    file = tmp_path / "result.json"
    assert step_time.main(["--only", "adam", "--repeats", "2", "--json", str(file)], TINY) == 0
    assert "adam" in capsys.readouterr().out
    content = json.loads(file.read_text())
    assert content["parameters"] == problem.size(TINY)
    assert [result["side"] for result in content["results"]] == ["legacy", "exact", "stock"]
    for result in content["results"]:
        assert result["optimizer"] == "adam"
        assert (
            0 < result["seconds"]["low"] <= result["seconds"]["median"] <= result["seconds"]["high"]
        )
        assert result["compile_seconds"] > 0
    assert content["results"][0]["ratio"] == {"median": 1, "low": 1, "high": 1}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_every_optimizer_has_sides_that_can_be_measured(entry):
    names = [side.name for side in step_time.sides_of(entry)]
    assert names[:2] == ["legacy", "exact"]
    assert not entry.stock or names[2:] == ["stock"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "adm"], "no adm; expected some of"),
        (["--repeats", "0"], "expected at least 1, found 0"),
        (["--json", "/no/such/folder/x.json"], "/no/such/folder does not exist"),
    ],
    ids=["unknown optimizer", "no turns", "no folder"],
)
def test_misuse_is_said(arguments, said, capsys):
    with pytest.raises(SystemExit) as caught:
        step_time.main(arguments, TINY)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_candidates_take_turns_and_warm_up_does_not_count():
    order: list[str] = []

    def candidate(name):
        def run():
            order.append(name)
            return float(len(order))

        return run

    seconds = timing.in_turn({"a": candidate("a"), "b": candidate("b")}, repeats=2, warm_up=1)
    assert order == ["b", "a", "a", "b", "b", "a"]
    assert seconds == {"a": [3.0, 6.0], "b": [4.0, 5.0]}


def test_a_stepper_goes_on_from_its_own_state():
    stepper = timing.Stepper(lambda state, grads: state + grads, jnp.zeros(2), jnp.ones(2))
    assert all(stepper() > 0 for _ in range(3))
    assert (stepper._state == 3).all()


def test_spread_of_known_values():
    assert timing.spread([4.0, 1.0, 2.0, 3.0, 5.0]) == timing.Spread(3.0, 2.0, 4.0)
    assert timing.spread([2.0]) == timing.Spread(2.0, 2.0, 2.0)
