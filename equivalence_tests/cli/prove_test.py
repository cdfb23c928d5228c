"""`optax-bridge prove`: the table, its certificates, exit codes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


def test_the_table_is_printed_and_written(command: Command, tmp_path: Path):
    file = tmp_path / "certificates.json"
    code, out, _ = command(
        "prove", "--only", "sgd", "--only", "momentum", "--only", "float32", "--json", str(file)
    )
    assert code == 0
    assert "10 of 10 claims proved" in out
    rows = json.loads(file.read_text())
    assert {row["proved"] for row in rows} == {"identical"}
    assert rows[0]["proofs"][0]["cases"][0]["obligations"]


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
