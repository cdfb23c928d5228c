"""`optax-bridge inspect` and `convert`, as a user types them."""

import inspect
import json
import os
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
    failed = bridge("convert", source, tmp_path / "other", *each[:2])
    assert failed.exit_code == 1
    assert "actor, nets/critic" in failed.stderr
    for wrong in (["--part", "actor"], ["--layout", "flat"], each[:2]):
        failed = bridge("convert", source, tmp_path / "other", *each, *wrong)
        assert failed.exit_code == 2, wrong
    assert bridge("convert", source, tmp_path / "other", *AS_ADAM).stderr.endswith(
        '--optimizer "NAME=Adam(...)" for each.\n'
    )
    assert sorted(os.listdir(tmp_path)) == ["back", "new", "old"]


@pytest.mark.parametrize("name", ["adafactor", "adafactor_bfloat16"])
def test_settings_that_shape_the_state_are_inferred_with_it(name: str, tmp_path: Path) -> None:
    """Momentum, its dtype, and which axes are long enough to be factored."""
    done = bridge("convert", FILES / f"{name}.msgpack", tmp_path / "new", "--recipe=exact")
    assert (done.exit_code, done.stderr) == (0, "")
    optimizer = ["--optimizer", OPTIMIZERS[name], "--recipe=exact"]
    assert bridge("convert", FILES / f"{name}.msgpack", tmp_path / "x", *optimizer).exit_code == 0
    same(tmp_path / "new", tmp_path / "x")


@pytest.mark.parametrize(
    "definition",
    [
        legacy_optim.RMSProp(0.1, centered=True),
        legacy_optim.WeightNorm(legacy_optim.Adafactor(0.1, beta1=0.9, min_dim_size_to_factor=2)),
    ],
    ids=["setting", "several, wrapped"],
)
def test_the_call_that_the_note_names_is_that_of_the_state(
    definition: legacy_optim.OptimizerDef, tmp_path: Path
) -> None:
    optimizer = definition.create({"w": np.ones((4, 3), np.float32)})
    (tmp_path / "old").write_bytes(serialization.to_bytes(optimizer))
    done = bridge("convert", tmp_path / "old", tmp_path / "new")
    assert done.exit_code == 0 and done.stderr.startswith(
        "note: no checkpoint has the learning rate"
    )
    named = done.stderr.split('"')[1]
    assert "learning_rate=1e-3" in named
    done = bridge("convert", tmp_path / "old", tmp_path / "other", "--optimizer", named)
    assert done.exit_code == 0, done.stderr


FAILURES = {
    "ambiguous": (
        [str(FILES / "multi_optimizer.msgpack"), "{new}"],
        "MultiOptimizer of AdaBelief or Adam or LAMB, LARS or Momentum",
    ),
    "no_source": (["nothing", "{new}", *AS_ADAM], "nothing of that name"),
    "other_optimizer": (
        [ADAM, "{new}", "--optimizer", "Momentum(0.1)"],
        "the state of Momentum, found the state of AdaBelief or Adam or LAMB. The state",
    ),
    "within_another": (
        [str(FILES / "weight_norm.msgpack"), "{new}", *AS_ADAM],
        "the state of Adam, found the state of WeightNorm of AdaBelief or Adam or LAMB. The state",
    ),
    "no_folder": (
        [ADAM, str(FILES / "adagrad.msgpack" / "er"), *AS_ADAM],
        "a folder to write into",
    ),
    "no_part": ([ADAM, "{new}/deep/er", *AS_ADAM, "--part", "critic"], "critic"),
    "two_parts": ([str(FILES / "dataclass.msgpack"), "{new}", *AS_ADAM], "--part"),
    "parameters_alone": ([str(FILES / "params_only.msgpack"), "{new}", *AS_ADAM], "inspect"),
    "not_a_new_one": ([ADAM, "{new}", *AS_ADAM, "--to", "legacy"], "a TrainState"),
    "no_optax_equal": (
        [ADAM, "{new}", "--optimizer", "Adafactor(1, epsilon2=0.5)", *OPTAX_ALONE],
        "epsilon2",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failure_is_one_clear_line(name: str, tmp_path: Path) -> None:
    arguments, message = FAILURES[name]
    done = bridge("convert", *[a.replace("{new}", str(tmp_path / "new")) for a in arguments])
    assert done.exit_code == (2 if name == "no_source" else 1), done.output
    assert message in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""
    assert os.listdir(tmp_path) == []


def test_existing_destination_needs_force(tmp_path: Path) -> None:
    destination = tmp_path / "new"
    destination.write_bytes(Path(ADAM).read_bytes())
    done = bridge("convert", ADAM, destination, *AS_ADAM)
    assert done.exit_code == 1 and "--force" in done.stderr
    assert destination.read_bytes() == Path(ADAM).read_bytes()
    done = bridge("convert", ADAM, destination, *AS_ADAM, "--force", "--no-verify", "--json")
    assert done.exit_code == 0 and not json.loads(done.stdout)["verified"], done.stderr
    assert destination.is_dir()
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


def test_convert_says_which_recipe_and_makes_folders(tmp_path: Path) -> None:
    destination = tmp_path / "runs" / "new" / "checkpoint_4"
    done = bridge("convert", ADAM, destination, *AS_ADAM, "--recipe", "exact")
    assert done.exit_code == 0, done.stderr
    assert ": Adam (for a program with optax_bridge.adam), 14 arrays" in done.stdout
    again = bridge("convert", ADAM, destination, *AS_ADAM, *OPTAX_ALONE, "--json", "--force")
    found = json.loads(again.stdout)
    assert (found["recipe"], found["optimizer"], found["step"]) == ("optax", "Adam", 4)
    assert (found["source"], found["format"], found["verified"]) == (ADAM, "Flax msgpack", True)


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


def test_a_dry_run_prints_where_each_leaf_goes_and_writes_nothing(tmp_path: Path) -> None:
    done = bridge("convert", ADAM, tmp_path / "new", *AS_ADAM, "--dry-run")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "['state']['step'] -> ['step']" in lines
    moment = "['state']['param_states']['scale']['grad_ema'] -> ['opt_state']['0']['mu']['scale']"
    assert moment in lines
    facts = json.loads(
        bridge("convert", ADAM, tmp_path / "new", *AS_ADAM, "--dry-run", "--json").stdout
    )
    assert len(facts["moves"]) == len(lines) - 1 and facts["dropped"] == []
    assert {
        "from": ["target", "scale"],
        "to": ["params", "scale"],
        "negated": False,
        "cast": None,
        "layout": None,
    } in facts["moves"]
    assert os.listdir(tmp_path) == []
    assert bridge("convert", ADAM, tmp_path / "new", "--params-only", "--dry-run").exit_code == 2


def test_of_a_folder_the_newest_is_converted_and_the_line_says_of_how_many(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for step in (2, 10):
        (tmp_path / "run" / f"checkpoint_{step}").write_bytes(Path(ADAM).read_bytes())
    done = bridge("convert", tmp_path / "run", tmp_path / "new", *AS_ADAM)
    assert "checkpoint_10, the newest of 2 (" in done.stdout, done.stderr
    done = bridge("convert", tmp_path / "run" / "checkpoint_2", tmp_path / "old", *AS_ADAM)
    assert "checkpoint_2 (" in done.stdout, done.stderr


def test_a_file_of_pytorch_is_said_to_keep_what_the_state_does_not_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = Returned(read_checkpoint(ADAM), 3, 2, 16, {"epoch": 1}, ["bn.num_batches_tracked"])
    options: Any = SimpleNamespace(json=False, base="b.pt", destination="a.pt")
    report_returned(done, options)
    own, others = capsys.readouterr().err.splitlines()
    assert own == "note: set by your program, still as in b.pt: epoch = 1"
    assert others.endswith("settings, lr among them, bn.num_batches_tracked")
    read = Read(Path("a.pt"), "PyTorch", {**saved(), "ema": saved()["model"]})
    assert torch_lines(read, "ema,optimizer")[0].startswith("7 tensors at ema, an optimizer of 2")
