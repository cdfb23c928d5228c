"""Everything that a person does in this repository, one session each: `nox --list` shows them.

Sessions without an argument run on a plain `nox`: tests on every supported Python with the newest
dependencies, tests with the lowest ones, and lint.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import nox

nox.needs_version = ">=2024.10.9"
nox.options.sessions = ["tests", "tests_lowest", "lint"]

PYTHONS = ["3.11", "3.12", "3.13"]
REFERENCE = Path("equivalence_tests", "reference")
CONSTRAINTS = Path(".ci", "constraints.txt")
WITH_FRAMEWORKS = (
    "optax_bridge/torch",
    "equivalence_tests/suite/witness_test.py",
    "equivalence_tests/sides/frameworks_test.py",
    "equivalence_tests/pair/explanation_test.py",
    "migration_guide/from_pytorch_test.py",
)


def lowest_dependencies() -> list[str]:
    """The lower bounds of all that users install as pins; jaxlib is pinned with jax."""
    project = nox.project.load_toml("pyproject.toml")["project"]
    extras = project["optional-dependencies"]
    dependencies = [*project["dependencies"]]
    for name in re.findall(r"[\w-]+", extras["all"][0].partition("[")[2]):
        dependencies += [d for d in extras[name] if not d.startswith("optax-bridge")]
    pins = []
    for dependency in dependencies:
        match = re.fullmatch(r"([\w-]+)>=([\d.]+)", dependency)
        if match is None:
            raise ValueError(
                f"pyproject.toml, dependencies: {dependency!r} has no plain lower bound; "
                "expected 'name>=version'"
            )
        name, version = match.groups()
        pins.append(f"{name}=={version}")
        if name == "jax":
            pins.append(f"jaxlib=={version}")
    return pins


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Runs the tests with the newest dependencies; arguments after -- go to pytest."""
    session.install("--upgrade", "--upgrade-strategy=eager", "-e", ".[test]")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(python=PYTHONS[0])
def tests_lowest(session: nox.Session) -> None:
    """Runs the tests with the lowest dependencies that pyproject.toml allows."""
    session.install("-e", ".[test]", *lowest_dependencies())
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(python=PYTHONS)
def tests_next(session: nox.Session) -> None:
    """Runs the tests with pre-releases of what this leans on."""
    session.install("-e", ".[test]")
    session.install("--upgrade", "--pre", "jax", "flax", "optax", "orbax-checkpoint")
    session.run("python", "-m", "pytest", *(session.posargs or ("-n", "auto")))


@nox.session(python=PYTHONS[0])
def tests_torch(session: nox.Session) -> None:
    """Runs what the tests leave out where PyTorch is not installed."""
    session.install("-e", ".[test,torch]")
    session.run("python", "-m", "pytest", *(session.posargs or WITH_FRAMEWORKS))


@nox.session(python=PYTHONS[0])
def coverage(session: nox.Session) -> None:
    """Runs the tests and shows the lines that none of them reaches."""
    session.install("-e", ".[test]", "coverage[toml]")
    session.run("coverage", "run", "-m", "pytest", *session.posargs)
    session.run("coverage", "report")


@nox.session(python=PYTHONS[0])
def lint(session: nox.Session) -> None:
    """Checks style, format, types and the direction of imports."""
    session.install("-e", ".[test,guide,torch,lint]", "nox")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")
    session.run("pyright")


@nox.session(python=PYTHONS[0])
def audit(session: nox.Session) -> None:
    """Looks the locked dependencies up among known vulnerabilities; skipped without a network."""
    session.install("pip-audit")
    command = ["pip-audit", "--disable-pip", "--no-deps", "-r", str(CONSTRAINTS)]
    done = subprocess.run(
        [Path(session.bin, "pip-audit"), *command[1:]], capture_output=True, text=True, check=False
    )
    session.log(done.stdout + done.stderr)
    if "ConnectionError" in done.stderr or "Max retries exceeded" in done.stderr:
        session.skip("the database of vulnerabilities cannot be reached from here")
    if done.returncode:
        session.error("known vulnerabilities, listed above")
    if "could not be audited" in done.stdout + done.stderr:
        session.skip("some packages, listed above, are not in the database: a mirror is asked")


@nox.session(python=PYTHONS[0])
def lock(session: nox.Session) -> None:
    """Writes the versions that CI installs, the newest that work together on this Python."""
    session.install("--upgrade", "--upgrade-strategy=eager", "-e", ".[test]")
    frozen = session.run("python", "-m", "pip", "freeze", "--exclude-editable", silent=True)
    CONSTRAINTS.write_text(f"# Written by `nox -s lock`.\n{frozen}", encoding="utf-8")


@nox.session(python=PYTHONS[0])
def fuzz(session: nox.Session) -> None:
    """Random faults and rewrites for the prover, and random damage to checkpoints."""
    session.install("-e", ".[all]")
    session.run("python", "-W", "ignore", "-m", "tools.prover_fuzz", *session.posargs)
    for kind in ("msgpack", "npz", "t5x", "orbax"):
        fuzzer = ("-m", "tools.checkpoint_fuzz", "--format", kind, "--count", "5000")
        session.run("python", "-W", "ignore", *fuzzer)


@nox.session(python=PYTHONS[0])
def mutants(session: nox.Session) -> None:
    """Plants single faults in the modules named; lists those that none of their tests notices."""
    if not session.posargs:
        session.error("name modules: nox -s mutants -- optax_bridge/optimizers/adam.py")
    session.install("-e", ".[test,mutants]")
    settings = nox.project.load_toml("pyproject.toml")["tool"]["cosmic-ray"]
    copy = Path(session.create_tmp(), "copy").resolve()  # faults are written into files
    session.run("git", "worktree", "add", "--force", "--detach", str(copy), external=True)
    try:
        for module in session.posargs:
            _plant_faults(session, settings, copy, module)
    finally:
        session.run("git", "worktree", "remove", "--force", str(copy), external=True)


def _as_toml(name: str, table: dict[str, Any]) -> str:
    lines = [f"{key} = {json.dumps(v)}" for key, v in table.items() if not isinstance(v, dict)]
    parts = [_as_toml(f"{name}.{key}", v) for key, v in table.items() if isinstance(v, dict)]
    return "\n".join([f"[{name}]", *lines, *parts])


def _plant_faults(session: nox.Session, settings: dict[str, Any], copy: Path, module: str) -> None:
    tests = " ".join(map(str, sorted(Path(module).parent.glob("*_test.py"))))
    command = f"python -m pytest -x -q -n 0 -p no:cacheprovider {tests}"
    config = {**settings, "module-path": module, "test-command": command}
    (copy / "mutants.toml").write_text(_as_toml("cosmic-ray", config), encoding="utf-8")
    with session.chdir(copy):
        Path("mutants.sqlite").unlink(missing_ok=True)
        session.run("cosmic-ray", "init", "mutants.toml", "mutants.sqlite")
        session.run("cr-filter-operators", "mutants.sqlite", "mutants.toml")
        session.run("cosmic-ray", "baseline", "mutants.toml")
        session.run("cosmic-ray", "exec", "mutants.toml", "mutants.sqlite")
        session.run("cr-report", "--surviving-only", "--show-diff", "mutants.sqlite")


@nox.session(python=PYTHONS[0])
def trainer_kills(session: nox.Session) -> None:
    """Kills a training thirty times at random moments, in one process and in two."""
    session.install("-e", ".[all]")
    for processes in ("1", "2"):
        command = ("-m", "tools.killing", "--kills", "30", "--processes", processes)
        session.run("python", *command, *session.posargs)


@nox.session(python=PYTHONS[0])
def check(session: nox.Session) -> None:
    """Installs as a user does and runs the suite; arguments go to optax-bridge check."""
    session.install(".[all]")
    session.run("optax-bridge", "check", *session.posargs)


@nox.session(python=PYTHONS[0])
def wheel(session: nox.Session) -> None:
    """Builds the wheel, and runs the command and the suite from it."""
    session.install("build")
    folder = session.create_tmp()
    session.run("python", "-m", "build", "--wheel", "--outdir", folder)
    newest = max(Path(folder).glob("*.whl"), key=lambda path: path.stat().st_mtime)
    session.install("--force-reinstall", "--no-deps", str(newest))
    session.install(f"{newest}[test]")
    with session.chdir(folder):  # away from the repository: only what is installed can be imported
        session.run("optax-bridge", "--version")
        session.run("optax-bridge", "migrate", "--list")
        session.run("python", "-m", "pytest", "--pyargs", "equivalence_tests", *session.posargs)


@nox.session(python="3.10")
def reference(session: nox.Session) -> None:
    """Records what the genuine flax.optim does: trajectories, checkpoints and old programs."""
    session.install("-r", str(REFERENCE / "requirements.txt"))
    out = session.create_tmp()
    session.run("python", "tools/record_reference.py", "--out", out, *session.posargs)
    session.run("python", "tools/record_checkpoints.py")
    session.run("python", "migration_guide/corpus/record.py")
    session.run("python", "migration_guide/corpus/record.py", "--examples")
    session.notify("reference_packed", posargs=[out])


@nox.session(python=PYTHONS[0], default=False)
def reference_packed(session: nox.Session) -> None:
    """Packs the folders that `reference` recorded into the files of the repository."""
    session.install("-e", ".")
    session.run("python", "-m", "tools.pack_reference", *session.posargs)


@nox.session(python=PYTHONS[0])
def reference_torch(session: nox.Session) -> None:
    """Records what the optimizers of PyTorch do, on its CPU kernels."""
    session.install("-e", ".[all,torch]")
    session.run("python", "-m", "tools.record_torch", *session.posargs)


@nox.session(python=PYTHONS[-1])
def gone_names(session: nox.Session) -> None:
    """Reads old releases and writes which names the newest have lost; fails if any was unknown."""
    session.install("--upgrade", "--upgrade-strategy=eager", "-e", ".[all]", "chex")
    session.run("python", "-m", "tools.gone_names", *session.posargs)


@nox.session(python=PYTHONS[0])
def examples(session: nox.Session) -> None:
    """Runs the guide's examples, before and after in turns; arguments such as --only mnist."""
    session.install("-e", ".[examples]")
    results = "migration_guide/examples/results.json"
    command = ("-m", "migration_guide.examples.compare", "--json", results)
    session.run("python", *command, *session.posargs)


@nox.session(python=PYTHONS[0])
def guide(session: nox.Session) -> None:
    """Builds the migration guide into docs/guide, static pages, and runs its snippets."""
    session.install("-e", ".[guide,torch]")
    session.run("python", "-m", "migration_guide.build", *session.posargs)


@nox.session(python=PYTHONS[0])
def pictures(session: nox.Session) -> None:
    """Draws the pictures of README.md from what the commands print."""
    session.install("-e", ".[all]")
    session.run("python", "-m", "tools.pictures")


@nox.session(python=PYTHONS[0])
def bench(session: nox.Session) -> None:
    """Measures what this package costs, and PyTorch; arguments name measurements."""
    session.install("-e", ".[bench]")
    arguments = session.posargs or ("--results", "benchmarks/RESULTS.md")
    session.run("python", "-m", "benchmarks", *arguments)
