"""What is mutated, and the tests that have to notice."""

from pathlib import Path

# Modules by glob -> files or ids of tests, quick ones first. Where several patterns fit, the first.
_TRAINING = "optax_bridge/training"
_CHECKPOINTS = "optax_bridge/checkpoints"
_CODEMOD = "migration_guide/codemod"
_RULES = [
    f"{_CODEMOD}/{name}_test.py"
    for name in (
        "rewrite", "bridge", "gone_names", "restoring", "standalone", "hyper_params", "imports",
        "jax_names", "left_alone", "pickled", "modules", "pins", "notebook", "flow", "scopes",
        "registry", "command", "driver",
    )
]  # fmt: skip
_CONVERSION = [
    f"{_CHECKPOINTS}/fitting_test.py",
    f"{_CHECKPOINTS}/restore_test.py",
    "optax_bridge/command/kept_layout_test.py",
    f"{_CHECKPOINTS}/conversion_test.py",
    f"{_CHECKPOINTS}/hostile_test.py",
    f"{_CHECKPOINTS}/sharded_test.py",
    f"{_CHECKPOINTS}/formats/t5x_test.py",
    "optax_bridge/command/checkpoints_test.py",
    "optax_bridge/command/new_format_test.py",
]

TESTS: dict[str, list[str]] = {
    f"{_TRAINING}/train_state.py": [
        "equivalence_tests/train_state_test.py",
        f"{_TRAINING}/full_train_state_test.py",
        f"{_CHECKPOINTS}/fitting_test.py",
    ],
    f"{_TRAINING}/full_train_state.py": [f"{_TRAINING}/full_train_state_test.py"],
    f"{_TRAINING}/learning_rate.py": [f"{_TRAINING}/full_train_state_test.py"],
    f"{_TRAINING}/restoring.py": [f"{_TRAINING}/restoring_test.py"],
    f"{_TRAINING}/orbax.py": [f"{_TRAINING}/restoring_test.py"],
    f"{_TRAINING}/in_memory.py": [f"{_CHECKPOINTS}/conversion_test.py"],
    f"{_TRAINING}/nnx*.py": [f"{_TRAINING}/nnx_test.py"],
    f"{_TRAINING}/shardings.py": [
        f"{_TRAINING}/shardings_test.py",
        f"{_TRAINING}/axis_metadata_test.py",
    ],
    "optax_bridge/optimizers/axis_roles.py": [
        "optax_bridge/optimizers/axis_roles_test.py",
    ],
    "optax_bridge/optimizers/groups.py": [
        "optax_bridge/optimizers/groups_test.py",
        "optax_bridge/optimizers/group_models_test.py",
    ],
    "optax_bridge/optimizers/selectors.py": [
        "optax_bridge/optimizers/groups_test.py",
        "optax_bridge/optimizers/group_models_test.py",
    ],
    "optax_bridge/legacy.py": [
        "optax_bridge/legacy_test.py",
        "equivalence_tests/train_state_test.py",
    ],
    "optax_bridge/legacy_layout.py": ["optax_bridge/legacy_layout_test.py"],
    f"{_CHECKPOINTS}/destination.py": [f"{_CHECKPOINTS}/destination_test.py"],
    f"{_CHECKPOINTS}/replaceable.py": [f"{_CHECKPOINTS}/destination_test.py"],
    f"{_CHECKPOINTS}/fitting.py": [f"{_TRAINING}/restoring_test.py", *_CONVERSION],
    **{
        f"{_CHECKPOINTS}/{name}.py": _CONVERSION
        for name in (
            "choosing",
            "collections",
            "conversion",
            "definitions",
            "fill",
            "layout",
            "legacy_optimizer",
            "mapping",
            "mapping_back",
            "recognise",
            "restore",
            "train_states",
            "transformed",
            "write",
        )
    },
    "optax_bridge/correspondence/entry.py": [
        "optax_bridge/correspondence/correspondence_test.py",
        "optax_bridge/correspondence/recipe_test.py",
        "equivalence_tests/proof/table_test.py",
    ],
    "optax_bridge/correspondence/*.py": [
        "optax_bridge/correspondence/recipe_test.py",
        "optax_bridge/correspondence/correspondence_test.py",
        f"{_CHECKPOINTS}/expressions_test.py",
    ],
    f"{_CODEMOD}/rules/*.py": _RULES,
}
_LEFT_OUT = ("__init__.py", "terminal.py")  # they hold no state
# Slow: each optimizer from end to end, which the suite's planted faults (equivalence_tests/suite/
# mutations_test.py) are about.
DESELECTED = [
    "equivalence_tests/train_state_test.py::test_the_exact_recipe_is_bit_for_bit_in_every_drive",
    "equivalence_tests/train_state_test.py::test_the_plain_protocol_is_within_one_ulp_a_step",
    "equivalence_tests/train_state_test.py::test_vmap_over_an_ensemble",
    "equivalence_tests/train_state_test.py::test_one_compilation_with_donation",
    f"{_TRAINING}/shardings_test.py::test_eight_devices_give_the_trajectory_of_one",
    f"{_TRAINING}/shardings_test.py::test_given_the_same_gradients_no_sum_is_split_and_a_step_"
    "rounds_by_one_ulp_at_most",
    f"{_CODEMOD}/driver_test.py::test_installed_packages_stay_as_they_are",
]


def modules(root: Path) -> dict[str, list[str]]:
    """Each module that is mutated, by its path from the root, with its tests."""
    found: dict[str, list[str]] = {}
    for pattern, tests in TESTS.items():
        if not any(root.glob(pattern)):
            raise ValueError(f"mutation/modules.py: there is no {pattern}")
        for file in sorted(root.glob(pattern)):
            if not file.name.endswith("_test.py") and file.name not in _LEFT_OUT:
                found.setdefault(str(file.relative_to(root)), tests)
    return found
