"""What moved is found under the names that it had."""

import importlib
import inspect

import pytest

import equivalence_tests
import optax_bridge
from optax_bridge._moved import NAMES

# What is no module of its own now: its public names, as they were.
DIVIDED = {
    "optax_bridge.checkpoints.convert": (
        "Converted choose_part convert_tree loaded restore shape_of_state check_parameters "
        "legacy_tree state_templates"
    ),
    "optax_bridge.checkpoints.transfer": (
        "Conversion convert_file write compare back on_device KEEP FLAT"
    ),
}
RENAMED = {"optax_bridge.exact.transformation": "step"}


def _moved() -> list[tuple[str, str]]:
    own = [("optax_bridge", NAMES), ("equivalence_tests", vars(equivalence_tests)["_MOVED"])]
    return [
        (f"{package}.{old}", f"{package}.{new}")
        for package, names in own
        for old, new in names.items()
        if isinstance(new, str)
    ]


@pytest.mark.parametrize(("old", "new"), _moved())
def test_module_is_the_same_under_its_old_name(old: str, new: str) -> None:
    module = importlib.import_module(old)
    assert module is importlib.import_module(new)
    assert module.__spec__ is not None and module.__spec__.name == new


@pytest.mark.parametrize("old", DIVIDED | RENAMED)
def test_names_of_a_divided_module_are_in_the_old_one(old: str) -> None:
    module = importlib.import_module(old)
    assert module.__name__ == old
    for name in (DIVIDED | RENAMED)[old].split():
        assert not inspect.ismodule(getattr(module, name))


def test_package_knows_a_moved_module_as_its_own() -> None:
    module = importlib.import_module("optax_bridge.checkpoints.transfer")
    assert vars(optax_bridge.checkpoints)["transfer"] is module
