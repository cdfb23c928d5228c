"""`optax-bridge prove`: the table, its JSON, exit codes."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equivalence_tests.proof import claims, table
from optax_bridge.correspondence.claim import identical

Command = Callable[..., Any]


def test_the_table_is_printed_and_written(command: Command, tmp_path: Path):
    file = tmp_path / "proofs.json"
    code, out, _ = command("prove", "--only", "sgd", "--only", "float32", "--json", str(file))
    assert code == 0
    assert "2 of 2 claims proved" in out
    rows = json.loads(file.read_text())
    assert {row["proved"] for row in rows} == {"identical"}
    proof = rows[0]["proofs"][0]
    assert (proof["verdict"], proof["scope"]["steps"]) == ("identical", "any")
    assert "functions are pure, as JAX asks" in proof["assumptions"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "adan"), "no optimizer, recipe or dtype is called adan"),
        (("--only", "sgd", "--json", "/nowhere/at/all.json"), "--json"),
        (("--pair", "a:b", "c:d"), "No such option: --pair"),
    ],
)
def test_misuse(command: Command, arguments: tuple[str, ...], message: str):
    done = command("prove", *arguments)
    assert done.code == 2
    assert message in " ".join(done.err.replace("│", " ").split())


def test_a_claim_that_is_not_proved_costs_the_exit_code(
    command: Command, monkeypatch: pytest.MonkeyPatch
):
    """A false claim: that Optax's Adagrad is the legacy one."""
    monkeypatch.setattr(claims, "_cores", lambda: 1)  # other processes see no patch
    choose = table.choose_recipe
    monkeypatch.setattr(
        table, "choose_recipe", lambda *args: dataclasses.replace(choose(*args), claim=identical())
    )
    done = command("prove", "--only", "adagrad", "--only", "optax", "--only", "float32")
    assert done.code == 1
    assert "not as claimed: adagrad-0-optax-float32: claimed " in done.out
    assert "0 of" in done.out.splitlines()[-1]
