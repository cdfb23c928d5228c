"""An optimizer is two files: with a thirteenth one's beside the others, everything knows it."""

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import legacy_optim
import optax_bridge
import optax_bridge.optimizers
from optax_bridge import states
from optax_bridge.checkpoints import restore_checkpoint
from optax_bridge.cli.recipe import FOUND, print_recipe
from optax_bridge.correspondence import ENTRIES, Entry, choose_recipe, correspondence_test
from optax_bridge.correspondence.expression import parse

FOLDER = Path(__file__).parent / "testdata" / "thirteenth"
PACKAGES: dict[ModuleType, str] = {
    legacy_optim: "legacy_optim",
    optax_bridge.optimizers: "optimizers",
}
PARAMS = {"w": jnp.asarray([1.0, -2.0, 0.5]), "b": jnp.zeros((2, 2))}


@pytest.fixture
def lion(monkeypatch: pytest.MonkeyPatch) -> Iterator[Entry]:
    """The entry of Lion, which flax.optim never had: two files, and a public name of each."""
    for package, folder in PACKAGES.items():
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(FOLDER / folder)])
    known = vars(ENTRIES).pop("_entries", None)
    _forget_maps()
    old = importlib.import_module("legacy_optim.lion")
    new = importlib.import_module("optax_bridge.optimizers.lion")
    monkeypatch.setattr(legacy_optim, "Lion", old.Lion, raising=False)
    monkeypatch.setattr(legacy_optim, "__all__", [*legacy_optim.__all__, "Lion"])
    monkeypatch.setattr(optax_bridge, "lion", new.lion, raising=False)
    yield ENTRIES["lion"]
    vars(ENTRIES)["_entries"] = known
    _forget_maps()


def _forget_maps() -> None:
    """Clears the tables that the map of states makes of the entries once in a process."""
    for value in vars(states).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


def test_the_table_has_it_and_its_lint_passes(lion: Entry, subtests: pytest.Subtests):
    assert list(ENTRIES).index("lion") == sorted(ENTRIES).index("lion")
    lint: dict[str, Any] = dict(vars(correspondence_test))
    for name in (
        "test_port_is_public_and_takes_the_hyper_parameters",
        "test_cases_move_every_hyper_parameter_off_its_default",
        "test_a_state_is_recognised_by_its_fields",
        "test_state_fields_are_claimed_once_or_dropped",
    ):
        lint[name](subtests)
    for case in lion.cases:
        lint["test_render_evaluates_to_what_build_makes"](lion, case)
        lint["test_state_map_goes_both_ways"](lion, case)
    lint["test_every_export_has_one_entry"]()


def test_two_files_and_two_lines_are_enough(tmp_path: Path):
    for package in (legacy_optim, optax_bridge):
        folder = Path(package.__path__[0])
        ignore = shutil.ignore_patterns("*_test.py", "testdata", "__pycache__")
        shutil.copytree(folder, tmp_path / folder.name, ignore=ignore)
    shutil.copy(FOLDER / "legacy_optim" / "lion.py", tmp_path / "legacy_optim")
    shutil.copy(FOLDER / "optimizers" / "lion.py", tmp_path / "optax_bridge" / "optimizers")
    for stub, line in {
        "legacy_optim": "from .lion import Lion as Lion",
        "optax_bridge": "from .optimizers.lion import lion as lion",
    }.items():
        with open(tmp_path / stub / "__init__.pyi", "a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    code = "from legacy_optim import *; from optax_bridge import *; print(Lion(0.1), lion)"
    for command in (["-c", code], ["-m", "optax_bridge", "recipe", "Lion(0.1)"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "lion" in done.stdout.lower()


def test_it_is_printed_chosen_and_wrapped_as_the_others(
    lion: Entry, capsys: pytest.CaptureFixture[str]
):
    assert print_recipe("lion(0.1)") == FOUND
    printed = capsys.readouterr().out
    assert "optax_bridge.lion(learning_rate=0.1)" in printed and lion.notes[:20] in printed
    assert choose_recipe(parse("Lion(0.1)")).call.target == "optax.lion"
    wrapped = choose_recipe(parse("WeightNorm(Lion(0.1))"), dtypes={"float32"})
    assert wrapped.call.render().startswith("optax_bridge.weight_norm(inner=optax_bridge.lion(")


@pytest.mark.parametrize("exact", [True, False])
def test_an_old_training_with_it_goes_on_to_the_bit(lion: Entry, exact: bool, tmp_path: Path):
    from flax import serialization

    optimizer = lion.definition(lion.cases[1], 0.1).create(PARAMS)
    optimizer = optimizer.apply_gradient(jax.tree.map(jnp.cos, PARAMS))
    file = tmp_path / "checkpoint_1"
    file.write_bytes(serialization.to_bytes(optimizer))
    tx = optax_bridge.from_legacy(optimizer.optimizer_def, exact)
    template = optax_bridge.TrainState.create(apply_fn=None, params=PARAMS, tx=tx)
    state: Any = restore_checkpoint(file, template)
    for _ in range(3):
        grads = jax.tree.map(jnp.sin, state.params)
        state, optimizer = state.apply_gradients(grads=grads), optimizer.apply_gradient(grads)
    jax.tree.map(np.testing.assert_array_equal, state.params, optimizer.target)
    jax.tree.map(np.testing.assert_array_equal, state.to_legacy(optimizer.optimizer_def), optimizer)
