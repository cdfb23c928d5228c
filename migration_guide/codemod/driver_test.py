"""Files: what is looked at, what is written, and that nothing breaks."""

import json
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import flax
import libcst
import optax
import pytest
from typer.testing import CliRunner

from migration_guide.codemod import driver
from migration_guide.codemod.reading import files
from migration_guide.codemod.registry import RULES
from migration_guide.codemod.results import Options
from optax_bridge.cli.app import app

OLD = "from flax import optim\n\noptimizer = optim.GradientDescent(0.1).create(p)\n"
NEW = (
    "import optax\nimport optax_bridge\n\n"
    "optimizer = optax_bridge.TrainState.create("
    "apply_fn=None, params=p, tx=optax.sgd(0.1))\n"
)


def _migrate(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["migrate", *args])
    return result.exit_code, result.output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(OLD, encoding="utf-8")
    return path


def test_shows_a_diff_and_changes_nothing(file: Path):
    file.write_text(OLD.rstrip("\n"), encoding="utf-8")
    code, output = _migrate(str(file))
    assert code == 0
    assert "-from flax import optim" in output
    assert "+import optax" in output
    assert output.count("\n\\ No newline at end of file\n") == 2
    assert "1 file would be rewritten" in output
    assert file.read_text(encoding="utf-8") == OLD.rstrip("\n")


def test_write_changes_and_a_second_run_does_nothing(file: Path):
    assert _migrate("--write", str(file))[0] == 0
    assert file.read_text(encoding="utf-8") == NEW
    assert "0 files rewritten" in _migrate("--write", str(file))[1]


def test_check_is_for_ci(file: Path):
    assert _migrate("--check", "--write", str(file))[0] == 1
    assert file.read_text(encoding="utf-8") == OLD
    _migrate("--write", str(file))
    assert _migrate("--check", str(file))[0] == 0


MISUSE = {
    "rule": (["--only", "creat", "."], "no rule 'creat'; is 'create' meant?"),
    "skipped-rule": (["--skip", "nothing", "."], "no rule 'nothing'; `optax-bridge migrate --list"),
    "recipe": (["--recipe", "stok", "."], "'stok' is not one of"),
    "missing": (["no/such/folder"], "no/such/folder: no such file or folder"),
    "no-path": ([], "name at least one file or folder"),
    "no-file": (["."], "no Python file and no notebook"),
    "text": (["read.me"], "read.me: expected Python or a notebook, found neither"),
    "words": (["words"], "words: expected Python or a notebook, found neither"),
    "state": (["checkpoint_1"], "checkpoint_1: expected Python or a notebook, found neither"),
    "one-of-two": (["train", "words"], "words: expected Python or a notebook, found neither"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").write_text("flax\n")
    (tmp_path / "read.me").write_text("from flax import optim, as ever")
    (tmp_path / "words").write_text("optim\n")
    (tmp_path / "checkpoint_1").write_bytes(b"\x81\xa6target\0")
    (tmp_path / "train").write_text(OLD)
    args, text = MISUSE[case]
    code, output = _migrate(*args)
    assert (code, text in " ".join(output.split())) == (2, True), output


WHY = {
    "other": ("import jax\n", "1 looked at", "it does not use flax.optim."),
    "migrated": ("import optax_bridge\n", "1 looked at", "it is migrated already."),
    "marked": (f"{OLD.rstrip()}  # optax-bridge: skip\n", "1 looked at", "stays unchanged."),
    "left": ("import jax\n# optax-bridge: do this\nf(x)\n", "1 looked at", "needs a person"),
}


@pytest.mark.parametrize("case", WHY)
def test_where_nothing_changes_it_says_why(case: str, file: Path):
    text, count, why = WHY[case]
    file.write_text(text, encoding="utf-8")
    code, output = _migrate("--write", str(file))
    assert count in output and "Nothing to rewrite: " in output and why in output
    assert (code, file.read_text(encoding="utf-8")) == (int(case == "left"), text)


def test_of_several_files_it_says_how_many_are_migrated(file: Path):
    file.write_text("import optax_bridge\n", encoding="utf-8")
    file.with_name("other.py").write_text("import jax\n", encoding="utf-8")
    assert "2 looked at" in (output := _migrate(str(file.parent))[1])
    assert "none of them uses flax.optim any longer; migrated already: 1 file." in output
    for name in ("train.py", "other.py"):
        file.with_name(name).write_text(OLD, encoding="utf-8")
    assert "create 2" in _migrate(str(file.parent))[1]


LEFT = {
    "by-hand": ({"a.py": f"{OLD}f(optim)\n"}, "a.py:"),
    "unreadable": ({"a.py": OLD, "b.py": f"{OLD}def (:\n"}, "b.py: "),
    "other-cell": (
        {
            "a.ipynb": '{"cells": [{"cell_type": "code", "source": '
            "\"%%bash\\npython -c 'from flax import optim'\"}]}"
        },
        "a.ipynb:cell 1:1: ",
    ),
}


@pytest.mark.parametrize(
    ("case", "flags"),
    [
        *((case, ()) for case in LEFT),
        *(("by-hand", (f"--{f}",)) for f in ("write", "check", "json")),
        ("other-cell", ("--json",)),
    ],
)
def test_what_is_left_to_a_person_makes_the_exit_code_1(
    case: str, flags: tuple[str, ...], tmp_path: Path
):
    texts, place = LEFT[case]
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    code, output = _migrate(*flags, str(tmp_path))
    assert code == 1
    assert f"{tmp_path / place.split(':')[0]}" in output
    assert "--json" in flags or place in output
    assert ('"cell"' in output) == (case == "other-cell" and flags == ("--json",))
    # A second run finds the same left.
    assert _migrate(*flags, str(tmp_path))[0] == 1


def test_only_and_skip_choose_rules(file: Path):
    file.write_text(OLD + "import jax\njax.tree_map(f, optimizer.target)\n", encoding="utf-8")
    _, only = _migrate("--only", "gone_names", str(file))
    assert "+jax.tree.map(f, optimizer.target)" in only
    assert "optax" not in only.replace("optax-bridge", "")
    _, skipped = _migrate("--skip", "gone_names", str(file))
    assert "+jax.tree_map(f, optimizer.params)" in skipped


def test_list_names_every_rule():
    code, output = _migrate("--list")
    assert code == 0
    assert [line.split()[0] for line in output.splitlines() if line] == [r.name for r in RULES]


def test_json_says_all(file: Path):
    file.write_text(OLD + "f(optim)\njax.random.key(0)\n", encoding="utf-8")
    data = json.loads(_migrate("--json", str(file))[1])
    assert [note.partition(":")[0] for note in data["notes"]] == ["Random numbers"]
    (entry,) = data["files"]
    assert entry["changed"]
    assert entry["counts"]["create"] == 1
    assert entry["by_hand"][0]["line"] == 4
    (entry,) = json.loads(_migrate("--json", "--write", str(file))[1])["files"]
    line = file.read_text(encoding="utf-8").splitlines()[entry["by_hand"][0]["line"] - 1]
    assert line == "f(optim)"


UNCLEAR = OLD + "\n\nx = 1\nmoments = f(\n    optimizer.state,\n)\nnumpy.savez(p, x=optimizer)\n"


@pytest.mark.parametrize("suffix", ["py", "ipynb"])
@pytest.mark.parametrize("write", [False, True], ids=["diff", "write"])
def test_the_lines_are_those_of_the_file_as_it_is_then(tmp_path: Path, suffix: str, write: bool):
    path = tmp_path / f"x.{suffix}"
    text = f"import numpy\n{UNCLEAR}"
    cell = {"cell_type": "code", "source": text.splitlines(keepends=True)}
    book = {"cells": [cell], "metadata": {}, "nbformat": 4}
    path.write_text(text if suffix == "py" else json.dumps(book), encoding="utf-8")
    flags = ["--write"] if write else []
    output = _migrate(*flags, str(path))[1]
    now = path.read_text(encoding="utf-8")
    lines = now if suffix == "py" else "".join(json.loads(now)["cells"][0]["source"])
    found = re.findall(rf"^  \S*x\.{suffix}:(?:cell 1:)?(\d+): (.)", output, re.MULTILINE)
    said = {start: lines.splitlines()[int(line) - 1].strip() for line, start in found}
    assert said == {"o": "optimizer.state,", "i": "numpy.savez(p, x=optimizer)"}
    assert ("To do by hand (line numbers before the rewrite):" in output) is not write


ENCODED = {
    "crlf": OLD.replace("\n", "\r\n").encode(),
    "bom": OLD.encode("utf-8-sig"),
    "latin-1": ("# -*- coding: latin-1 -*-\n# caf\xe9\n" + OLD).encode("latin-1"),
    "no-last-newline": OLD.rstrip("\n").encode(),
    "form-feed": ("x = 1\n\x0c\n" + OLD).encode(),
    "tabs": (OLD + "if x:\n\ty = optimizer.target\n").encode(),
}


@pytest.mark.parametrize("case", ENCODED, ids=str)
def test_encoding_and_line_endings_stay(file: Path, case: str):
    file.write_bytes(ENCODED[case])
    assert _migrate("--write", str(file))[0] == 0
    data = file.read_bytes()
    assert b"optax.sgd" in data
    assert data.startswith(b"\xef\xbb\xbf") == (case == "bom")
    assert (b"\xe9" in data) == (case == "latin-1")
    assert data.endswith(b"\n") == (case != "no-last-newline")
    assert data.count(b"\r\n") == (data.count(b"\n") if case == "crlf" else 0)


def test_modes_and_links_stay(file: Path, tmp_path: Path):
    file.chmod(0o751)
    link = tmp_path / "link.py"
    link.symlink_to(file)
    files.write(link, b"x = 1\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o751
    assert link.is_symlink()
    assert file.read_bytes() == b"x = 1\n"


def test_a_file_that_changes_meanwhile_is_not_overwritten(file: Path):
    other = file.with_name("other.py")
    other.write_text(OLD, encoding="utf-8")
    report = driver.migrate([file.parent], Options())
    file.write_text("x = 1\n", encoding="utf-8")
    (failed,) = driver.save(report.results, [])
    assert (failed.path, failed.refused) == (file, "not written: it has changed meanwhile")
    assert file.read_text(encoding="utf-8") == "x = 1\n"
    assert other.read_text(encoding="utf-8") != OLD


def test_what_a_link_in_a_folder_leads_out_to_is_left_alone_and_named(tmp_path: Path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "mine").mkdir()
    outer, inner = tmp_path / "shared" / "outer.py", tmp_path / "mine" / "inner.py"
    for file in (outer, inner):
        file.write_text(OLD, encoding="utf-8")
        (tmp_path / "mine" / f"to_{file.name}").symlink_to(file)
    code, output = _migrate("--write", str(tmp_path / "mine"))
    assert code == 1
    assert f"to_outer.py: left alone: a link to {outer.resolve()}, outside of" in output
    assert (outer.read_text(encoding="utf-8"), inner.read_text(encoding="utf-8")) == (OLD, NEW)
    assert (tmp_path / "mine" / "to_inner.py").is_symlink()
    assert _migrate("--write", str(tmp_path / "mine"), str(tmp_path / "shared"))[0] == 0
    assert outer.read_text(encoding="utf-8") == NEW
    outer.write_text(OLD, encoding="utf-8")
    assert _migrate("--write", str(tmp_path / "mine" / "to_outer.py"))[0] == 0
    assert outer.read_text(encoding="utf-8") == NEW


@pytest.mark.parametrize("broken", ["read_bytes", "parse", "rewrite"])
def test_one_file_that_fails_does_not_stop_the_others(
    file: Path, monkeypatch: pytest.MonkeyPatch, broken: str
):
    other = file.with_name("broken.py")
    other.write_text(OLD.replace("optimizer =", "broken ="), encoding="utf-8")
    owner: Any = {"read_bytes": Path}.get(broken, driver)
    right = getattr(owner, broken)

    def fails(first: Path | str, *rest: object) -> object:
        if "broken" in str(first):
            raise OSError("not to be read") if owner is Path else ZeroDivisionError("a bug")
        return right(first, *rest)

    monkeypatch.setattr(owner, broken, fails)
    report = driver.migrate([file.parent], Options())
    refused = {result.path: result.refused for result in report.results if result.refused}
    said = "not to be read" if owner is Path else "ZeroDivisionError: a bug; please report this"
    assert (list(refused), said in refused[other]) == ([other], True)
    assert [result.path for result in report.changed_files] == [file]


def test_imports_from_any_of_several_modules_are_seen():
    homes = {"first": ["Groups"], "second": ["make"]}
    for text in ("from .first import Groups", "from a.second import make", "from second import *"):
        assert files.hands_on(f"import os\n{text}\n".encode(), homes)
    for text in ("from first import make", "import second", "from third import make, Groups"):
        assert not files.hands_on(text.encode(), homes)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def evaluate(optimizer):\n    return optimizer.target\n", "is this an optimizer"),
        (
            "def limited(x):\n    return x.clip(a_max=1)\n",
            "the clip method of JAX arrays now takes",
        ),
    ],
    ids=["optimizer", "clip"],
)
def test_another_file_of_the_program_is_listed(code: str, said: str, tmp_path: Path):
    (tmp_path / "steps.py").write_text(code, encoding="utf-8")
    (tmp_path / "main.py").write_text(OLD, encoding="utf-8")
    _, output = _migrate(str(tmp_path))
    assert f"steps.py:2: {said}" in output


def test_environments_and_hidden_folders_are_left_out(tmp_path: Path):
    for folder in (".git", "venv", "lib/site-packages/x", "__pycache__"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "old.py").write_text(OLD, encoding="utf-8")
    assert driver.migrate([tmp_path], Options()).seen == 0


def test_files_without_a_trace_of_the_api_are_not_parsed(tmp_path: Path):
    other = "import numpy as np\ndef f(x):\n    return np.sum(x.target) + 1\n"
    for index in range(300):
        folder = tmp_path / f"p{index % 5}"
        folder.mkdir(exist_ok=True)
        text = OLD if index % 30 == 0 else other.replace(".target", "") if index % 3 else other
        (folder / f"m{index}.py").write_text(text, encoding="utf-8")
    report = driver.migrate([tmp_path], Options())
    assert (report.seen, len(report.changed_files), report.parsed) == (300, 10, 10)


def test_a_file_that_is_named_counts_without_flax_too(tmp_path: Path):
    (tmp_path / "a.py").write_text("import jax\njax.tree_map(f, x)\n", encoding="utf-8")
    assert driver.migrate([tmp_path / "a.py"], Options()).changed_files
    assert not driver.migrate([tmp_path], Options()).changed_files


def test_installed_packages_stay_as_they_are(tmp_path: Path):
    installed = tmp_path / "site-packages"
    for package in (flax, libcst, optax):
        home = Path(package.__path__[0])
        shutil.copytree(home, installed / home.name)
    report = driver.migrate([installed], Options())
    assert report.seen > 500
    users = [r.path for r in report.changed_files if not files.uses_optim(r.path.read_bytes())]
    assert users == []
    assert [r.path for r in report.results if "please report" in r.refused] == []


@pytest.mark.parametrize("count", [150, 195, 300])
def test_brackets_that_overflow_a_parser_stop_no_other_file(tmp_path: Path, count: int):
    nested = f"y = {'[' * count}\nimport jax\ndtype = jax.numpy.float16\n"
    (tmp_path / "a.py").write_text(OLD, encoding="utf-8")
    (tmp_path / "b.py").write_text(f"{nested}from flax import optim\n", encoding="utf-8")
    (tmp_path / "c.py").write_text(f"{nested}o.apply_gradient(g)\n", encoding="utf-8")
    report = driver.migrate([tmp_path], Options())
    assert [result.path.name for result in report.changed_files] == ["a.py"]
    assert {result.path.name for result in report.refusals} == {"b.py"}
    assert not any("please report" in result.refused for result in report.results)


def test_old_random_numbers_are_kept_once_before_or_after_a_migration(tmp_path: Path):
    line = 'jax.config.update("jax_threefry_partitionable", False)\n'
    text = "import jax\nfrom flax import optim\nk = jax.random.PRNGKey(0)\n"
    text += "o = optim.Adam(1).create(p)\n"
    keeps = Options(old_random_numbers=True)
    for first in (keeps, Options()):
        (tmp_path / "a.py").write_text(text)
        (tmp_path / "no_keys.py").write_text(
            "from flax import optim\no = optim.Adam(1).create(p)\n"
        )
        for options in (first, keeps, keeps):
            driver.save(driver.migrate([tmp_path], options).results)
        code = (tmp_path / "a.py").read_text()
        assert code.count(line) == 1 and code.index("import optax") < code.index(line)
        assert code.index(line) < code.index("k = ")
        assert line not in (tmp_path / "no_keys.py").read_text()
