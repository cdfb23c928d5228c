"""`optax-bridge inspect` and `convert`, as a user types them."""

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from flax import serialization
from typer.testing import CliRunner

import legacy_optim
from optax_bridge import TrainState
from optax_bridge.checkpoints import read_checkpoint
from optax_bridge.checkpoints.read import Read
from optax_bridge.checkpoints.testdata.optimizers import OPTIMIZERS
from optax_bridge.cli.app import app
from optax_bridge.cli.pytorch import report_returned, torch_lines
from optax_bridge.metadata.paths import leaves
from optax_bridge.torch.checkpoints.files import Returned
from optax_bridge.torch.checkpoints.moves_test import saved

FILES = Path(__file__).parents[1] / "checkpoints" / "testdata"
ADAM = str(FILES / "adam.msgpack")
OPTAX_ALONE = ["--recipe", "optax"]
AS_ADAM = ["--optimizer", "Adam(learning_rate=1e-2)"]


def bridge(*arguments: str | Path) -> Any:
    # click before 8.2 mixes both streams unless told not to; later ones have no such argument.
    mixes = "mix_stderr" in inspect.signature(CliRunner).parameters
    runner: Any = CliRunner(**({"mix_stderr": False} if mixes else {}))  # pyright: ignore
    return runner.invoke(app, [str(argument) for argument in arguments])


def same(one: Path, other: Path) -> None:
    left, right = (dict(leaves(read_checkpoint(path).tree)) for path in (one, other))
    assert list(left) == list(right)
    for path, leaf in left.items():
        assert np.asarray(leaf).tobytes() == np.asarray(right[path]).tobytes(), path


@pytest.mark.parametrize("name", ["params_only", "dictionary", "replicated", "new", "t5x"])
def test_parameters_only(name: str, tmp_path: Path) -> None:
    source = FILES / f"{name}.msgpack"
    if name == "new":
        source = tmp_path / "new"
        assert bridge("convert", ADAM, source, *AS_ADAM).exit_code == 0
    if name == "t5x":
        from optax_bridge.checkpoints.testdata.write_t5x import write_t5x

        source = tmp_path / "checkpoint_4"
        write_t5x(source, read_checkpoint(ADAM).tree)
    options = ["--params-only", "--format", "orbax" if name == "t5x" else "msgpack"]
    optimizer = [] if name in ("params_only", "dictionary", "new") else AS_ADAM
    done = bridge("convert", source, tmp_path / "params", *options, *optimizer)
    assert done.exit_code == 0, done.stderr
    found = read_checkpoint(tmp_path / "params").tree
    assert sorted(found) == ["dense", "head", "scale"]


def test_several_optimizers_are_converted_where_they_stand(tmp_path: Path) -> None:
    source, params = tmp_path / "old", {"w": np.ones(2, np.float32)}
    actor, critic = legacy_optim.Adam(0.1).create(params), legacy_optim.Momentum(0.1).create(params)
    tree = {"actor": actor, "nets": {"critic": critic}, "alpha": np.zeros(1)}
    source.write_bytes(serialization.to_bytes(tree))
    each = ["--optimizer", "actor=adam(0.1)", "--optimizer", "nets/critic=Momentum(0.1)"]
    done = bridge("convert", source, tmp_path / "new", *each, "--format", "msgpack")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "actor: Adam (for a program with optax.adam), nets/critic: Momentum (" in done.stdout
    found = read_checkpoint(tmp_path / "new").tree
    assert sorted(found) == ["actor", "alpha", "nets"]
    for state in (found["actor"], found["nets"]["critic"]):
        assert sorted(state) == ["opt_state", "params", "step"]
    # By the names of Optax, whichever was converted first: Flax's own restore goes by them.
    assert sorted(found["actor"]["opt_state"]["0"]) == ["count", "mu", "nu"]
    assert sorted(found["nets"]["critic"]["opt_state"]["0"]) == ["trace"]
    returned = bridge("convert", tmp_path / "new", tmp_path / "back", *each, "--to", "legacy")
    assert (returned.exit_code, returned.stderr) == (0, "")
    assert serialization.to_bytes(
        serialization.from_bytes(tree, (tmp_path / "back").read_bytes())
    ) == (source.read_bytes())
    assert sorted(os.listdir(tmp_path)) == ["back", "new", "old"]


@pytest.mark.parametrize("name", ["adafactor", "adafactor_bfloat16"])
def test_settings_that_shape_the_state_are_inferred_with_it(name: str, tmp_path: Path) -> None:
    """Momentum, its dtype, and which axes are long enough to be factored."""
    done = bridge("convert", FILES / f"{name}.msgpack", tmp_path / "new", "--recipe=exact")
    assert (done.exit_code, done.stderr) == (0, "")
    optimizer = ["--optimizer", OPTIMIZERS[name], "--recipe=exact"]
    assert bridge("convert", FILES / f"{name}.msgpack", tmp_path / "x", *optimizer).exit_code == 0
    same(tmp_path / "new", tmp_path / "x")


NEW = """
import jax.numpy as jnp, optax, optax_bridge

def make_state(tx=optax.adam(0.1)):
    params = {
        "dense": {"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)},
        "head": {"kernel": jnp.ones((3, 5))}, "scale": jnp.ones(3),
    }
    return optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)

def exact():
    return make_state(optax_bridge.lamb())

def two():
    return {"actor": make_state(), "critic": make_state(optax_bridge.adam())}

def needs(rate):
    return make_state(optax.adam(rate))

def needs_and_fails(rate=None):
    raise RuntimeError("no data set here\\nand none there")

made = make_state()
"""
PROGRAMS = {
    "new.py": NEW,
    "ends.py": "raise SystemExit(3)\n",
    "broken.py": "import no_such_module\n",
    "fails.py": "\n\n1 / 0\n",
    "old.py": "from flax import optim\n",
    "like.py": "from old import f\n",
    "like_name.py": "import old_name\nf = lambda: old_name.f()\n",
    "old_name.py": "import flax\nf = lambda: flax.optim.Adam(0.1)\n",
}
AS_ADAM_TOO = '--optimizer "Adam(learning_rate=1e-2)"'
GROUPS = """--optimizer 'MultiOptimizer(("*kernel", Adam(0.1)), ("*bias", LARS(0.1)))'"""
SHORT = "beta1=0.9, min_dim_size_to_factor=2"
EACH = f'--optimizer "generator=Adafactor(0.1, {SHORT})" --optimizer "discriminator=LARS(1)"'
# Each goes on from what those before it have written.
COMMANDS = (
    f"adam runs/new {AS_ADAM_TOO}",
    f"adam runs/new {AS_ADAM_TOO}",
    f"adam runs/new {AS_ADAM_TOO} --recipe exact --force --json",
    f"adam unchecked {AS_ADAM_TOO} --no-verify --format msgpack",
    f"adam unchecked {AS_ADAM_TOO} --no-verify --json --force",
    f"runs/new again {AS_ADAM_TOO}",
    f"runs/new back {AS_ADAM_TOO} --to legacy",
    f"unchecked back_too {AS_ADAM_TOO} --to legacy --format msgpack --json",
    f"adam_bfloat16 half {AS_ADAM_TOO}",
    f"adam_bfloat16 half_of_optax {AS_ADAM_TOO} --recipe optax",
    "adagrad adagrad_new",
    "adagrad adagrad_of_optax --optimizer Adagrad(0.1) --recipe optax",
    "momentum momentum_new",
    "adafactor adafactor_new",
    "adafactor_bfloat16 adafactor_narrow --json",
    "rmsprop_centered centered",
    "weight_norm_momentum wrapped --optimizer WeightNorm(Momentum(0.1))",
    f"multi_optimizer groups {GROUPS}",
    f"multi_optimizer exact_groups {GROUPS} --recipe exact --json",
    "multi_optimizer ambiguous",
    f"dataclass several {EACH}",
    f"dataclass several_in_json {EACH} --json",
    f"dataclass flat {EACH} --layout flat",
    f"dataclass some {EACH.partition(' --')[0]}",
    f"dataclass one {AS_ADAM_TOO}",
    f"dataclass part {AS_ADAM_TOO} --part critic",
    "dataclass params --part generator --params-only",
    f"adam params {AS_ADAM_TOO} --params-only --json --force",
    "params_only none --optimizer Adam(0.1)",
    "adam other --optimizer Momentum(0.1)",
    "weight_norm within --optimizer Adam(0.1)",
    "adam no_equal --optimizer 'Adafactor(1, epsilon2=0.5)' --recipe optax",
    f"adam old {AS_ADAM_TOO} --to legacy",
    f"adam moves {AS_ADAM_TOO} --dry-run",
    f"values moves {AS_ADAM_TOO.replace('Adam', 'LARS')} --dry-run --recipe optax --part optimizer",
    "lars moves --optimizer LARS(0.1) --dry-run --json",
    f"adam moves {AS_ADAM_TOO} --dry-run --params-only",
    f"run from_a_run {AS_ADAM_TOO} --recipe exact",
    f"run/checkpoint_9 from_one {AS_ADAM_TOO}",
    f"adam/er below {AS_ADAM_TOO}",
    f"adam adam/er {AS_ADAM_TOO}",
    "adam liked --like new.py:make_state",
    "adam liked_exactly --like new.py:exact --json",
    "adam liked_as_two --like new.py:two",
    "adam liked_as_made --like new.py:made --format msgpack",
    f"adam liked_too --like new.py:make_state {AS_ADAM_TOO}",
    *(
        f"adam none --like {name}"
        for name in (
            *("new.py", "new.py:mak_state", "new.py:needs", "new.py:needs_and_fails", "gone.py:f"),
            *("gone:f", "ends.py:f", "broken.py:f", "fails.py:f", "old.py:f", "old_name.py:f"),
            *("like.py:f", "like_name.py:f"),
        )
    ),
    "adam new.pt --optimizer Adam(1)",
    "adam none --base adam",
    "adam none --step 3",
    "adam none --names names.toml",
    f"adam none --names names.toml --params-only {AS_ADAM_TOO}",
    "adam none --to torch --like new.py:made",
    "adam none --optimizer Adm(1)",
    "adam none --optimizer Adam(lr=1)",
)


def test_convert_prints_what_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in FILES.glob("*.msgpack"):
        Path(file.stem).write_bytes(file.read_bytes())
    Path("run").mkdir()
    for step in (9, 10):
        Path(f"run/checkpoint_{step}").write_bytes(Path(ADAM).read_bytes())
    for name, program in PROGRAMS.items():
        Path(name).write_text(program)
    pages = {}
    for number, command in enumerate(COMMANDS):
        before = {*os.listdir()}
        done = bridge("convert", *shlex.split(command))
        made = sorted({*os.listdir()} - before - {"__pycache__"})
        text = f"{done.stdout}{done.stderr}exit code {done.exit_code}, new: {', '.join(made)}"
        text = re.sub(r"(?<=\()/.*site-packages/", "", text.replace(f"{tmp_path}/", ""))
        pages[f"{number}: {command}"] = text
    recorded("convert.txt", pages)


def test_what_is_not_finite_is_converted_only_where_asked(tmp_path: Path) -> None:
    tree: Any = serialization.msgpack_restore(Path(ADAM).read_bytes())
    tree["target"]["scale"] = tree["target"]["scale"] * np.float32(np.nan)
    (tmp_path / "ill").write_bytes(serialization.msgpack_serialize(tree))
    for options, code in ((AS_ADAM, 1), ([*AS_ADAM, "--allow-nan"], 0)):
        assert bridge("convert", tmp_path / "ill", tmp_path / "as", *options).exit_code == code


@pytest.mark.parametrize("place", ["itself", "around", "within", "link"])
def test_source_is_never_the_destination(place: str, tmp_path: Path) -> None:
    source = tmp_path / "run" / "checkpoint_4"
    source.parent.mkdir()
    if place == "within":
        from optax_bridge.checkpoints.testdata.write_t5x import write_t5x

        write_t5x(source, read_checkpoint(ADAM).tree)
    else:
        source.write_bytes(Path(ADAM).read_bytes())
    destination = {"itself": source, "around": source.parent, "within": source / "new"}.get(place)
    if destination is None:
        destination = tmp_path / "link"
        destination.symlink_to(source)
    done = bridge("convert", source, destination, *AS_ADAM, "--force")
    assert done.exit_code == 1 and "a destination other than the source" in done.stderr
    done = bridge("inspect", source)
    assert done.exit_code == 0 and "float32[4, 3]" in done.stdout


def test_a_state_that_was_saved_for_each_device_goes_back_once(tmp_path: Path) -> None:
    definition = legacy_optim.Momentum(0.1)
    optimizer = definition.create({"w": np.ones(2, np.float32)})
    state = TrainState.from_legacy(optimizer)
    source, optimizers = tmp_path / "new", ["--optimizer", "Momentum(0.1)", "--to", "legacy"]
    copies = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), state)
    source.write_bytes(serialization.to_bytes(copies))
    done = bridge("convert", source, tmp_path / "back", *optimizers)
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "back").read_bytes() == serialization.to_bytes(optimizer)


def test_the_project_says_which_recipe_convert_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "pyproject.toml"
    settings.write_text('[tool.optax-bridge]\nrecipe = "exact"\nskip = ["gone_names"]\n')
    checkpoint = Path(ADAM).absolute()
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path / "runs")
    done = bridge("convert", checkpoint, "by_default", *AS_ADAM)
    assert ": Adam (for a program with optax_bridge.adam)" in done.stdout, done.stderr
    done = bridge("convert", checkpoint, "as_asked", *AS_ADAM, "--recipe", "auto")
    assert ": Adam (for a program with optax.adam)" in done.stdout, done.stderr
    settings.write_text('[tool.optax-bridge]\nrecipe = "exat"\n')
    done = bridge("convert", checkpoint, "wrong", *AS_ADAM)
    assert done.exit_code == 2 and "found 'exat'; is exact meant?" in done.stderr
    Path("pyproject.toml").write_text('[tool.optax-bridge]\nrecipe = "exact"\n')  # the nearest
    done = bridge("convert", checkpoint, "nearest", *AS_ADAM)
    assert ": Adam (for a program with optax_bridge.adam)" in done.stdout, done.stderr


@pytest.mark.parametrize("file_format", ["orbax", "msgpack"])
def test_disk_that_is_full_is_one_clear_line(file_format: str, tmp_path: Path) -> None:
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300)); "
        "from optax_bridge.cli.app import main; main()"
    )
    arguments = ["convert", ADAM, str(tmp_path / "new"), *AS_ADAM, "--format", file_format]
    done = subprocess.run(
        [sys.executable, "-B", "-c", program, *arguments],
        capture_output=True, text=True, check=False,
        env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"},
    )  # fmt: skip
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    if file_format == "orbax":  # whose own threads print more, on a loaded machine
        lines = [line for line in lines if line.startswith(f"{tmp_path / 'new'}: expected")]
    assert len(lines) == 1 and "Traceback" not in lines[0]
    # Threads of tensorstore may be late; the next command removes what they write.
    assert [name for name in os.listdir(tmp_path) if not name.endswith(".part")] == []


def test_a_file_of_pytorch_is_said_to_keep_what_the_state_does_not_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = Returned(read_checkpoint(ADAM), 3, 2, 16, {"epoch": 1}, ["bn.num_batches_tracked"])
    options: Any = SimpleNamespace(json=False, base="b.pt", destination="a.pt")
    report_returned(done, options)
    said = capsys.readouterr()
    line = f"{ADAM} (Flax msgpack) -> a.pt: step 3, 2 arrays, 16 bytes, read again and compared"
    assert said.out == f"{line}\n"
    own, others = said.err.splitlines()
    assert own == "note: set by your program, still as in b.pt: epoch = 1"
    settings = "the groups' settings, lr among them, bn.num_batches_tracked"
    assert others == f"note: as b.pt has them: {settings}"
    report_returned(done, SimpleNamespace(json=True, base="b.pt", destination="a.pt"))  # type: ignore[arg-type]
    assert json.loads(capsys.readouterr().out) == {
        "source": ADAM, "format": "Flax msgpack", "destination": "a.pt", "step": 3, "arrays": 2,
        "bytes": 16, "verified": True, "unchanged": ["epoch", "bn.num_batches_tracked"],
    }  # fmt: skip
    read = Read(Path("a.pt"), "PyTorch", {**saved(), "ema": saved()["model"]})
    assert torch_lines(read, "ema,optimizer")[0].startswith("7 tensors at ema, an optimizer of 2")
