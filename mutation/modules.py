"""What is mutated: all that holds state or decides, and none of what only shows it."""

from pathlib import Path

_MUTATED = (
    "equivalence_tests/*.py",
    "equivalence_tests/compare/*.py",
    "equivalence_tests/sides/*.py",
    "equivalence_tests/suite/*.py",
    "legacy_optim/*.py",
    "migration_guide/codemod/**/*.py",
    "optax_bridge/*.py",
    "optax_bridge/checkpoints/**/*.py",
    "optax_bridge/cli/*.py",
    "optax_bridge/correspondence/**/*.py",
    "optax_bridge/exact/*.py",
    "optax_bridge/metadata/*.py",
    "optax_bridge/optimizers/*.py",
    "optax_bridge/spmd/checkpointer/*.py",
    "optax_bridge/spmd/evaler.py",
    "optax_bridge/spmd/learner/*.py",
    "optax_bridge/spmd/trainer/*.py",
    "optax_bridge/training/*.py",
)
# Texts and the terminal; tools of developers; and proofs, whose `fuzz.py` plants faults of its own.
_LEFT_OUT = (
    "**/*_test.py", "**/__init__.py", "**/__main__.py", "**/conftest.py", "**/terminal.py",
    "**/terminal/*.py", "**/testdata/**/*.py", "**/fuzz*.py", "equivalence_tests/*_command.py",
    "equivalence_tests/prove.py", "equivalence_tests/soak.py",
    "equivalence_tests/suite/record_seen.py", "legacy_optim/removed*_names.py",
    "migration_guide/codemod/facts.py", "optax_bridge/spmd/trainer/analysis.py",
)  # fmt: skip
# Of no use here: tests of texts, of tools and of proofs.
_OTHER_TESTS = (
    "benchmarks/*", "equivalence_tests/proof/*", "equivalence_tests/prove_test.py",
    "equivalence_tests/planted_proofs_test.py", "house_test.py", "migration_guide/*_test.py",
    "migration_guide/examples/*",
)  # fmt: skip
# Slow: each optimizer from end to end, which the suite's planted faults (equivalence_tests/suite/
# mutations_test.py) are about.
DESELECTED = (
    "equivalence_tests/train_state_test.py::test_the_exact_recipe_is_bit_for_bit_in_every_drive",
    "equivalence_tests/train_state_test.py::test_the_plain_protocol_is_within_one_ulp_a_step",
    "equivalence_tests/train_state_test.py::test_vmap_over_an_ensemble",
    "equivalence_tests/train_state_test.py::test_one_compilation_with_donation",
    "optax_bridge/training/shardings_test.py::test_eight_devices_give_the_trajectory_of_one",
    "optax_bridge/training/shardings_test.py::test_given_the_same_gradients_no_sum_is_split_and_a_"
    "step_rounds_by_one_ulp_at_most",
    "migration_guide/codemod/driver_test.py::test_installed_packages_stay_as_they_are",
)


def modules(root: Path) -> list[str]:
    """Each module that is mutated, by its path from the root."""
    left_out = {file for pattern in _LEFT_OUT for file in root.glob(pattern)}
    found = {file for pattern in _MUTATED for file in root.glob(pattern)}
    return sorted(str(file.relative_to(root)) for file in found - left_out)


def test_files(root: Path) -> list[str]:
    """Each file of tests that may notice, by its path from the root."""
    left_out = {file for pattern in _OTHER_TESTS for file in root.glob(pattern)}
    tops = {pattern.partition("/")[0] for pattern in _MUTATED}
    found = {file for top in tops for file in (root / top).rglob("*_test.py")}
    return sorted(str(file.relative_to(root)) for file in found - left_out)
