"""What `python program.py` does, `run` does: the same programs both ways, as processes.

None of them imports JAX, so each costs as little as Python's start.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ADDRESS = re.compile(r" at 0x\w+")
ROOT = Path(__file__).resolve().parents[1]

# Name -> (program, arguments after the interpreter's own, standard input).
SCRIPTS = {
    "names-of-the-main-module": "print({k: str(v) for k, v in sorted(vars().items())})",
    "arguments": "import sys; print(sys.argv)",
    "path": "import sys; print(sys.path)",
    "flags": (
        "import sys\nprint(sys.flags, sys.warnoptions, sys._xoptions, sys.stdout.write_through)"
    ),
    "traceback": "def f():\n    return 1 / 0\n\nf()",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT); input()",
    "standard-input": "import sys; print(sys.stdin.read())",
    "own-modules-first": "import helper, rich; print(helper.__file__, rich.__file__)",
    "atexit-reads-names": "import atexit\nx = 3\natexit.register(lambda: print('end', x))",
    "forks": "import os\nif os.fork() == 0:\n    print('child', flush=True)\nelse:\n"
    "    os.wait(); print('parent')",
    "subprocess": "import sys; sys.path.pop(0)\nimport subprocess\nprint(subprocess.run("
    "[sys.executable, '-c', 'import sys; print(sys.argv, sys.path)'], capture_output=True))",
}

POOL = """\
import multiprocessing, sys

class Result:
    def __init__(self, x):
        self.x = x

def work(x):
    main = sys.modules["__main__"]
    return Result(x), __name__, vars(main).get("work") is work, sorted(sys.modules)[:0]

if __name__ == "__main__":
    with multiprocessing.get_context("{}").Pool(1) as pool:
        results = pool.map(work, [1, 2])
    print([(type(r) is Result, r.x, *rest) for r, *rest in results])
else:
    print(__name__, __spec__, __file__, sys.argv, flush=True)
"""
POOLS = ("spawn", "fork", "forkserver")
SCRIPTS |= {f"pool-{name}": POOL.format(name) for name in POOLS}

HELPERS = {
    "helper.py": "nothing = None",
    "rich.py": "",
    "subprocess.py": "",  # a name of the standard library: the command needs its own
    "package/__init__.py": "",
    "package/__main__.py": "import sys; print(__name__, __spec__, __package__, sys.argv, sys.path)",
    "package/part.py": "import sys; print(vars().keys(), __spec__, __package__, sys.argv)",
    "package/spawns.py": POOL.format("spawn"),
}
COMMANDS = {
    "package": ["-m", "package", "x", "--y", "-m", "z"],
    "part-of-a-package": ["-m", "package.part", "--quiet"],
    "pool-of-a-module": ["-m", "package.spawns"],
    "folder": ["package", "x"],
    "input-as-program": ["-", "x"],
    "no-module": ["-m", "nothing"],
}


def _both(folder: Path, args: list[str]) -> tuple[tuple[int, str, str], ...]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    results = []
    for start in ([], ["-m", "legacy_optim"]):
        done = subprocess.run(
            [sys.executable, *start, *args],
            cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60,
            input="import sys; print(__name__, sys.argv)",
        )  # fmt: skip
        results.append((done.returncode, *(ADDRESS.sub("", t) for t in (done.stdout, done.stderr))))
    return tuple(results)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, text in {**HELPERS, **{f"case-{k}.py": v + "\n" for k, v in SCRIPTS.items()}}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_does_the_same(folder: Path, name: str):
    plain, ours = _both(folder, [f"case-{name}.py", "a", "-m", "--quiet"])
    assert ours == plain


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_does_the_same(folder: Path, name: str):
    plain, ours = _both(folder, COMMANDS[name])
    assert ours == plain


def test_options_of_the_interpreter_are_the_programs(folder: Path):
    args = ["-W", "error", "-O", "-X", "utf8=0", "-u", "-i"]
    others = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment = {**others, "PYTHONPATH": str(ROOT)}
    plain, ours = (
        subprocess.run(
            [sys.executable, *args, *start, "case-flags.py"],
            cwd=folder, env=environment, capture_output=True, text=True, check=True, input="",
        ).stdout
        for start in ([], ["-m", "legacy_optim"])
    )  # fmt: skip
    assert ours == plain


def test_another_sitecustomize_still_runs(folder: Path, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text("print('mine', __name__)", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "legacy_optim", "case-arguments.py"],
        cwd=folder, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines().count("mine sitecustomize") == 2  # the command's, the program's


@pytest.mark.parametrize("option", ["-I", "-S"])
def test_where_it_cannot_work_it_says_so(folder: Path, option: str):
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom legacy_optim.__main__ import main\n"
    )
    done = subprocess.run(
        [sys.executable, option, "-c", f"{code}sys.exit(main(['case-arguments.py']))"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "leave these flags out" in done.stderr
