import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from optax_bridge.cli import app

MINE = """
import jax.numpy as jnp
import legacy_optim
import optax

params = {"w": jnp.ones((2, 2))}
old = legacy_optim.Adam(1e-3)
new = optax.adam(1e-3)
other = optax.adam(1e-2)


def old_of(hp):
    return legacy_optim.Adam(hp["rate"])


def new_of(hp):
    return optax.adam(hp["rate"])


def broken():
    raise RuntimeError("boom")
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = "mine_for_prove"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


Prove = Callable[..., tuple[object, str, str]]


@pytest.fixture
def prove(capsys: pytest.CaptureFixture[str]) -> Prove:
    """Calls the command; typer's CliRunner has both streams in one with an older click."""

    def call(*args: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            get_command(app).main(["prove", *args], prog_name="optax-bridge")
        output, errors = capsys.readouterr()
        return ended.value.code, output, errors

    return call


def test_the_table_is_printed_and_written(prove: Prove, tmp_path: Path):
    file = tmp_path / "certificates.json"
    code, out, _ = prove(
        "--only", "sgd", "--only", "momentum", "--only", "float32", "--json", str(file)
    )
    assert code == 0
    assert "10 of 10 claims proved" in out
    rows = json.loads(file.read_text())
    assert {row["proved"] for row in rows} == {"identical"}
    assert rows[0]["proofs"][0]["cases"][0]["obligations"]


def test_a_pair(prove: Prove, mine: str, tmp_path: Path):
    file = tmp_path / "one.json"
    code, out, _ = prove("--pair", f"{mine}:old", f"{mine}:new", "--json", str(file))
    assert (code, out.split(",")[0]) == (0, "equal over the reals")
    assert json.loads(file.read_text())["verdict"] == "equal over the reals"
    code, out, _ = prove("--pair", f"{mine}:old", f"{mine}:other", "--params", f"{mine}:params")
    assert code == 1
    assert "params['w']" in out


def test_a_pair_for_all_numbers(prove: Prove, mine: str):
    pair = ("--pair", f"{mine}:old_of", f"{mine}:new_of", "--params", "w=2x2,b=3")
    code, out, _ = prove(*pair, "--hyper-params", "rate=1e-3")
    assert code == 0
    assert "and all rate" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--only", "adan"), "no optimizer, recipe or dtype is called adan"),
        (("--only", "weight_norm", "--params", "w=1"), "--params is for --pair"),
        (("--pair", "a:b", "c:d", "--only", "adam"), "--only is not for --pair"),
        (("--pair", "nowhere:left", "nowhere:right"), "No module named 'nowhere'"),
        (("--pair", "{mine}:broken", "{mine}:new"), "boom"),
        (("--pair", "{mine}:old", "{mine}:new", "--params", "w=ax"), "expected shapes as w=4x3"),
        (("--pair", "{mine}:old", "{mine}:new", "--params", "w=0x3"), "has no elements"),
        (("--pair", "{mine}:old", "{mine}:new", "--params", "w=3,w=4"), "each name once"),
        (("--pair", "{mine}:old", "{mine}:new", "--params", "w=4x"), "found 'w=4x'"),
        (
            ("--pair", "{mine}:old_of", "{mine}:new_of", "--hyper-params", "rate"),
            "expected name=number",
        ),
        (("--only", "sgd", "--json", "/nowhere/at/all.json"), "--json"),
    ],
)
def test_misuse(prove: Prove, mine: str, args: tuple[str, ...], message: str):
    code, _, err = prove(*(arg.format(mine=mine) for arg in args))
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())
