"""What CONTRIBUTING says of adding an optimizer is all that there is to do.

A thirteenth one, which flax never had, is added to a copy of the packages by those steps; the
suites of the correspondence, of the guide's tables and of the reference must pass there.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ADDED = Path(__file__).parent / "testdata" / "thirteenth"
PACKAGES = ("legacy_optim", "optax_bridge", "equivalence_tests", "migration_guide")
# What CONTRIBUTING asks for beside the three new files.
LINES = {
    "legacy_optim/__init__.py": (
        "from legacy_optim.lion import Lion as Lion",
        '__all__ += ["Lion"]',
    ),
    "optax_bridge/__init__.pyi": (
        "from .optimizers.lion import LionState as LionState",
        "from .optimizers.lion import lion as lion",
    ),
}
NOT_ABOUT_IT = (
    "not thirteenth and not snippets and not judge and not damaged and not trajectory "
    "and not the_reference"  # which has pages of what is left out here
)


def test_a_thirteenth_optimizer_needs_three_files_and_their_lines(tmp_path: Path):
    leave_out = shutil.ignore_patterns("__pycache__", "testdata", "corpus", "spmd")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=leave_out)
    for file in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    shutil.copytree(ADDED, tmp_path, dirs_exist_ok=True)
    for file, lines in LINES.items():
        with (tmp_path / file).open("a") as target:
            target.write("\n".join((*lines, "")))
    suites = ["optax_bridge/correspondence", "migration_guide/guide_test.py"]
    suites += [str(file) for file in (tmp_path / "equivalence_tests").rglob("reference_test.py")]
    suites += [str(file) for file in (tmp_path / "equivalence_tests").rglob("matrix_test.py")]
    about = f"(({NOT_ABOUT_IT}) and not matrix) or lion"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", about, *suites]
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=own)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert done.stdout.count("lion") == 0  # nothing about it was skipped, which `-ra` would list
