# pyright: strict
"""Getting old releases, and reading each in the way that still works for it."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tools.gone_names.source import Release, Snapshot

# Package -> the project that has it, its releases in order: those up to the first number are old,
# and what they have counts; the later ones say when it went.
RELEASES: dict[str, tuple[str, str, str]] = {
    "jax": (
        "jax",
        "0.2.0 0.2.5 0.2.9 0.2.13 0.2.17 0.2.21 0.2.24 0.2.28 0.3.0 0.3.7 0.3.13 0.3.17 0.3.25 "
        "0.4.1 0.4.4 0.4.7 0.4.10 0.4.13",
        "0.4.16 0.4.20 0.4.23 0.4.25 0.4.26 0.4.28 0.4.30 0.4.31 0.4.33 0.4.34 0.4.35 0.4.36 "
        "0.4.38 0.5.0 0.5.3 0.6.0 0.6.2 0.7.0 0.7.2 0.8.0 0.8.3 0.9.0 0.9.2 0.10.0 0.10.2 "
        "0.11.0 0.11.2",
    ),
    "flax": (
        "flax",
        "0.2.0 0.2.2 0.3.0 0.3.3 0.3.4 0.3.6 0.4.0 0.4.2 0.5.0 0.5.3",
        "0.6.0 0.6.1 0.6.4 0.6.8 0.6.11 0.7.2 0.7.5 0.8.2 0.8.5 0.9.0 0.10.0 0.10.4 0.10.7 0.11.2 "
        "0.12.0 0.12.4 0.12.8 0.12.10",
    ),
    "optax": (
        "optax",
        "0.0.1 0.0.3 0.0.6 0.0.9 0.1.0 0.1.1 0.1.3 0.1.5",
        "0.1.7 0.1.9 0.2.0 0.2.2 0.2.3 0.2.4 0.2.5 0.2.6",
    ),
    "chex": ("chex", "0.0.1 0.0.4 0.0.7 0.1.0 0.1.3 0.1.5", "0.1.7 0.1.82 0.1.85 0.1.87 0.1.89"),
    "numpy": ("numpy", "1.18.5 1.20.3 1.22.4 1.24.4 1.26.4", "2.0.2 2.1.3 2.2.6 2.3.5 2.4.6"),
    # The project's name was another one at first.
    "orbax.checkpoint": (
        "orbax-checkpoint",
        "orbax==0.0.5 orbax==0.0.16 orbax==0.0.23 orbax==0.1.0 0.2.0",
        "0.4.0 0.5.0 0.6.0 0.7.0 0.11.0",
    ),
}

# Releases that can still be imported: version of Python, and what to install with them. No jaxlib
# before 0.4.13 can be installed any more, so what needs an older one is read off its files.
IMPORTED: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {
    **{("numpy", version): ("3.8", ()) for version in ("1.18.5", "1.20.3", "1.22.4", "1.24.4")},
    **{("numpy", version): ("3.10", ()) for version in ("1.26.4", "2.0.2", "2.1.3", "2.2.6")},
    ("numpy", "2.3.5"): ("3.11", ()),
    ("jax", "0.4.13"): ("3.10", ("jaxlib==0.4.13", "numpy==1.23.5", "scipy==1.10.1")),
    ("flax", "0.5.3"): (
        "3.10",
        ("jax==0.4.13", "jaxlib==0.4.13", "numpy==1.23.5", "scipy==1.10.1", "optax==0.1.5"),
    ),
    ("optax", "0.1.5"): (
        "3.10",
        ("jax==0.4.13", "jaxlib==0.4.13", "numpy==1.23.5", "scipy==1.10.1", "chex==0.1.7"),
    ),
}


@dataclass(frozen=True)
class Read:
    """A release that was read."""

    names: Snapshot
    how: str


def read(package: str, version: str, cache: Path) -> Read:
    """Reads a release, from the cache if it was read before."""
    snapshot = cache / f"{package}-{version}.json"
    if not snapshot.exists():
        result = _read_installed(package, version, cache) or _read_files(package, version, cache)
        snapshot.write_text(json.dumps([result.how, result.names]), encoding="utf-8")
    how, names = json.loads(snapshot.read_text(encoding="utf-8"))
    return Read(names, how)


def _read_files(package: str, version: str, cache: Path) -> Read:
    project, _, version = version.rpartition("==")
    project = project or RELEASES[package][0]
    folder = cache / "files" / f"{project}-{version}"
    if not folder.exists():
        _unpack(_download(project, version, cache), folder)
    roots = [path.parent for path in folder.rglob("__init__.py")]
    name = package.rpartition(".")[2]
    root = min((path for path in roots if path.name == name), key=lambda path: len(path.parts))
    return Read(Release(root.parents[package.count(".")], package).snapshot(), "source")


def _download(project: str, version: str, cache: Path) -> Path:
    target = cache / "downloads" / f"{project}-{version}"
    target.mkdir(parents=True, exist_ok=True)
    command = ["download", "--quiet", "--no-deps", "--ignore-requires-python"]
    command += ["--dest", str(target), f"{project}=={version}"]
    _pip(sys.executable, command)
    return next(iter(sorted(target.iterdir())))


def _unpack(archive: Path, folder: Path) -> None:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder)
    else:
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")


def _read_installed(package: str, version: str, cache: Path) -> Read | None:
    """None where the release is not among those, or its Python is not on this machine."""
    python_version, more = IMPORTED.get((package, version), ("", ()))
    python = _python(python_version) if python_version else None
    if python is None:
        return None
    target = cache / "installed" / f"{package}-{version}"
    command = ["install", "--quiet", "--target", str(target), f"{package}=={version}", *more]
    if not target.exists():
        _pip(python, command)
    script = Path(__file__).with_name("imported.py")
    environment = {**os.environ, "PYTHONPATH": str(target), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [python, "-s", str(script), package],
        env=environment,
        cwd=cache,
        capture_output=True,
        text=True,
        check=True,
    )
    # A program of the release may print while it is imported; the snapshot is the last line.
    return Read(json.loads(done.stdout.splitlines()[-1]), f"import, Python {python_version}")


def _python(version: str) -> str | None:
    python = shutil.which(f"python{version}")
    if python and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
        return python
    for path in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")):
        return str(path)
    return None


def _pip(python: str, arguments: list[str]) -> None:
    done = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"pip {' '.join(arguments)}: {done.stderr.strip()}")
