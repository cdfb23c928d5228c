"""What restores an optimizer reads old files as well; what surely holds none stays with Flax."""

import ast
import os
from pathlib import Path
from typing import Any

import pytest

from migration_guide.codemod import driver, summary
from migration_guide.codemod.reading.marks import NOTE
from migration_guide.codemod.results import Options
from migration_guide.codemod.rewrite import rewrite
from migration_guide.codemod.rewrite_test import settled

HEAD = "from flax import optim\nopt = optim.Adam(0.1).create(p)\n"
OURS = "optax_bridge.checkpoints."
# Imports -> the name that a call has with them.
SPELLINGS = {
    "module": ("from flax.training import checkpoints", "checkpoints.restore_checkpoint"),
    "alias": ("from flax.training import checkpoints as ckpt", "ckpt.restore_checkpoint"),
    "name": ("from flax.training.checkpoints import restore_checkpoint", "restore_checkpoint"),
    "other-name": ("from flax.training.checkpoints import restore_checkpoint as r", "r"),
    "dotted": ("import flax.training.checkpoints", "flax.training.checkpoints.restore_checkpoint"),
    "dotted-alias": ("import flax.training.checkpoints as c", "c.restore_checkpoint"),
}
# What is restored -> the call afterwards; `opt` is an optimizer.
REWRITTEN = {
    "bare": "restore_checkpoint(d, opt)",
    "keywords": "restore_checkpoint(ckpt_dir=d, target=opt, step=3, prefix='p_', parallel=False)",
    "dict": "restore_checkpoint(d, {'optimizer': opt, 'epoch': 0})",
    "tuple": "restore_checkpoint(d, (1, [opt]))",
    "state": "restore_checkpoint(d, S(o=opt))",
    "nothing-known": "restore_checkpoint(d, make())",
    "starred": "restore_checkpoint(*args)",
    "nothing-known-in-a-dict": "restore_checkpoint(d, {'epoch': 0, 'o': make()})",
    "nothing-known-in-a-list": "restore_checkpoint(d, [0, make()])",
    "starred-in-a-list": "restore_checkpoint(d, [0, *more])",
    "starred-in-a-dict": "restore_checkpoint(d, {'epoch': 0, **more})",
    "either": "restore_checkpoint(d, a or b)",
    "given-on": "partial(restore_checkpoint, d)",
}
LEFT = {
    "parameters": "from_bytes(opt.target, data)",
    "variables": "v = model.init(k, x)\nserialization.from_bytes(v, data)",
    "numbers": "from_state_dict({'epoch': 0, 'name': 'x'}, saved)",
    "raw": "msgpack_restore(data)",
    "saved": "to_bytes(opt)",
    "part-of-variables": "v = model.init(k, x)\nserialization.from_bytes(v['params'], data)",
    "itself": "v = (w, w)\nw = {'a': v}\nserialization.from_bytes(v, data)",
}


def test_any_spelling(subtests: pytest.Subtests):
    for form, (line, name) in SPELLINGS.items():
        with subtests.test(form):
            code = rewrite(f"{line}\n{HEAD}opt = {name}('/d', opt)\n", Options()).code
            assert f"opt = {OURS}restore_checkpoint('/d', opt)\n" in code
            assert line not in code


def test_what_may_hold_an_optimizer(subtests: pytest.Subtests):
    for case, call in REWRITTEN.items():
        with subtests.test(case):
            head = "from flax.training.checkpoints import restore_checkpoint\nimport functools\n"
            result = rewrite(f"{head}{HEAD}x = {call}\n", Options())
            assert f"x = {call.replace('restore', f'{OURS}restore')}\n" in result.code
            assert result.messages == ()


def test_what_holds_none_or_saves_stays(subtests: pytest.Subtests):
    for case in LEFT:
        with subtests.test(case):
            code = f"from flax import serialization\n{HEAD}serialization.{LEFT[case]}\n"
            code = code.replace("serialization.v =", "v =")
            result = rewrite(code, Options())
            assert (OURS in result.code, result.refused) == (False, "")


def test_a_folder_that_is_assigned_in_a_circle_does_not_end_the_rewrite():
    head = f"from flax.training import checkpoints\n{HEAD}A = B\nB = A\n"
    result = rewrite(f"{head}checkpoints.save_checkpoint(A, opt, 1)\n", Options())
    assert result.refused == ""
    assert "checkpoints.save_checkpoint(absolute_folder(A), opt, 1)\n" in result.code


def test_what_makes_the_template_is_named_where_there_is_one_alone(subtests: pytest.Subtests):
    for more in ["", "if x:\n    def make(): return optim.Adam(0.2).create(p)\n"]:
        with subtests.test(more):
            head = "from flax import optim\nfrom flax.training import checkpoints\n"
            made = f"def make(): return optim.Adam(0.1).create(p)\n{more}"
            result = rewrite(
                f"{head}{made}o = checkpoints.restore_checkpoint('/d', make())\n", Options()
            )
            (found,) = result.checkpoints
            assert (found.path, found.template) == ("/d", "" if more else "make")
            restored = "checkpoints.restore_checkpoint('/d', make())"
            inner = f"def f():\n    {made.splitlines()[0]}\n    {restored}\n"
            (found,) = rewrite(head + inner, Options()).checkpoints
            assert found.template == ""


def test_a_path_of_parts_is_seen():
    head = f"from pathlib import Path\nfrom flax.training import checkpoints\n{HEAD}"
    call = "checkpoints.restore_checkpoint(Path('/runs') / ('a' + '_1'), opt, None, 'net_')"
    (restored,) = rewrite(f"{head}opt = {call}\n", Options()).checkpoints
    assert (restored.path, restored.prefix) == ("/runs/a_1", "net_")


@pytest.mark.parametrize(("text", "pattern"), [("ker", "*ker*"), ("k*r", ""), ("k[0]", "")])
def test_a_text_that_is_no_pattern_is_not_made_one(text: str, pattern: str):
    code = (
        "from flax import optim\nfrom flax.training import checkpoints\n"
        f"t = optim.ModelParamTraversal(lambda path, _: {text!r} in path)\n"
        "o = optim.MultiOptimizer((t, optim.Adam(0.1))).create(p)\n"
        "o = checkpoints.restore_checkpoint('/d', o)\n"
    )
    (restored,) = rewrite(code, Options()).checkpoints
    call = f"MultiOptimizer(('{pattern}', Adam(learning_rate=0.1)))"
    assert restored.optimizers == ((("", call),) if pattern else ())


def test_a_program_without_optimizers_stays():
    code = "from flax.training import checkpoints\ns = checkpoints.restore_checkpoint('/d', s)\n"
    assert rewrite(code, Options()).code == code


def test_without_a_template_the_layout_is_said():
    call = "checkpoints.restore_checkpoint('/d', None)"
    code = f"from flax.training import checkpoints\n{HEAD}x = {call}\n"
    result = settled(code)
    assert f"{NOTE}without a template" in result.code
    assert f"\nx = {call}\n" in result.code


FOLDERS = {
    "abspath('run')": "os.path.abspath('run')",
    "'/run'": "'/run'",
    "'gs://bucket/run'": "'gs://bucket/run'",
    "tempfile.mkdtemp()": "tempfile.mkdtemp()",
    "os.path.join(tempfile.mkdtemp(), 'run')": "os.path.join(tempfile.mkdtemp(), 'run')",
    "FOLDER": "os.path.abspath(FOLDER)",
    "os.path.expanduser('~/run')": "os.path.expanduser('~/run')",
    "os.path.expanduser('run')": "absolute_folder(os.path.expanduser('run'))",
    "Path('run').resolve()": "Path('run').resolve()",
    "str(Path('run').absolute())": "str(Path('run').absolute())",
    "os.path.join('/run', name)": "os.path.join('/run', name)",
    "'/run/' + name": "'/run/' + name",
}


def test_a_folder_that_can_be_seen(subtests: pytest.Subtests):
    for folder in FOLDERS:
        with subtests.test(folder):
            head = (
                "import os, tempfile\nfrom pathlib import Path\nfrom os.path import abspath\n"
                "from flax.training import checkpoints\n"
                f"FOLDER: str = 'run'\n{HEAD}"
            )
            result = rewrite(f"{head}checkpoints.save_checkpoint({folder}, opt, 1)\n", Options())
            expected = "abspath('run')" if folder == "abspath('run')" else FOLDERS[folder]
            assert f"checkpoints.save_checkpoint({expected}, opt, 1)\n" in result.code
            assert result.messages == ()


UNSEEN = {
    "save_checkpoint(d, opt, 1)": "save_checkpoint(absolute_folder(d), opt, 1)",
    "save_checkpoint(ckpt_dir=f(x), target=opt, step=1)": (
        "save_checkpoint(ckpt_dir=absolute_folder(f(x)), target=opt, step=1)"
    ),
    "save_checkpoint(a.d + '/x', opt)": "save_checkpoint(absolute_folder(a.d + '/x'), opt)",
}


def test_a_folder_that_only_the_program_knows(subtests: pytest.Subtests):
    """Relative ones become absolute, the address of a store stays."""
    for call in UNSEEN:
        with subtests.test(call):
            code = f"from flax.training import checkpoints\n{HEAD}checkpoints.{call}\n"
            result = settled(code)
            assert result.code.endswith(f"checkpoints.{UNSEEN[call]}\n")
            assert result.messages == ()
            tree = ast.parse(result.code)
            functions: list[ast.stmt] = [
                node for node in tree.body if isinstance(node, ast.FunctionDef)
            ]
            names: dict[str, Any] = {"os": os}
            exec(ast.unparse(ast.Module(functions, [])), names)
            assert names["absolute_folder"]("run") == os.path.abspath("run")
            assert names["absolute_folder"](Path("/run")) == "/run"
            assert names["absolute_folder"]("gs://bucket/run") == "gs://bucket/run"


def test_a_folder_that_no_call_shows_gets_a_comment_once(subtests: pytest.Subtests):
    for use in ["save_checkpoint(*args)", "partial(save_checkpoint, d)"]:
        with subtests.test(use):
            code = f"from flax.training.checkpoints import save_checkpoint\n{HEAD}{use}\n"
            result = rewrite(code, Options())
            assert result.code.count(f"{NOTE}Flax now passes the folder to Orbax") == 1
            again = rewrite(result.code, Options())
            assert again.code == result.code
            assert [m.by_hand for m in again.messages] == [False]


def test_what_has_no_folder_may_be_handed_on():
    code = f"from flax.training import checkpoints\n{HEAD}f(checkpoints.latest_checkpoint)\n"
    result = rewrite(code, Options())
    assert "f(checkpoints.latest_checkpoint)\n" in result.code and result.messages == ()


@pytest.mark.parametrize("made", ["Own(0.1)", "optim.MultiOptimizer((t, Own(0.1)), (u, lamb))"])
def test_a_class_of_the_program_s_own_needs_a_template(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    path = Path("train.py")
    path.write_text(
        f"from flax.training import checkpoints\n{HEAD}class Own(optim.OptimizerDef): pass\n"
        f"lamb = optim.LAMB(0.1)\nopt = {made}.create(p)\n"
        "opt = checkpoints.restore_checkpoint('own', opt)\n"
    )
    report = driver.migrate([path], Options())
    (said,) = summary.convert_commands(report)
    assert said == "optax-bridge convert own own_new --like train.py:FUNCTION"
    assert "where FUNCTION takes no arguments and returns the state to restore into" in (
        summary.summary(report, Options())
    )


def test_commands_that_convert_are_ready_to_paste(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    path = Path("train.py")
    path.write_text(
        "import os\nfrom flax import serialization\nfrom flax.training import checkpoints\n"
        f"DIR = 'my runs'\n{HEAD}def make(): return optim.Adam(0.1, eps=E).create(p)\n"
        "opt = checkpoints.restore_checkpoint(DIR, make())\n"
        "with open(os.path.join(DIR, 'a.msgpack'), 'rb') as f:\n"
        "    other = serialization.from_bytes(optim.Momentum(0.2).create(p), f.read())\n"
        "opt = checkpoints.restore_checkpoint(elsewhere, opt)\n"
        "opt = serialization.from_bytes(opt, 'a string'.encode())\n"
    )
    first, second = summary.convert_commands(driver.migrate([path], Options()))
    assert first == "optax-bridge convert 'my runs' 'my runs_new' --like train.py:make"
    new = "'my runs/a_new.msgpack' --format msgpack --optimizer 'Momentum(learning_rate=0.2)'"
    assert second == f"optax-bridge convert 'my runs/a.msgpack' {new}"


KEPT = {
    "some": ("keep=3", True),
    "by-place": ("'ckpt_', n", True),
    "all": ("keep=float('inf')", False),
    "as-flax-does": ("", False),
    "nothing-restored": ("keep=3", False),
}


def test_where_few_files_are_kept_the_old_one_is_said_to_go(subtests: pytest.Subtests):
    for case, (arguments, said) in KEPT.items():
        with subtests.test(case):
            restored = "opt = checkpoints.restore_checkpoint('/d', opt)\n" * (
                case != "nothing-restored"
            )
            code = (
                f"from flax.training import checkpoints\n{HEAD}{restored}"
                f"checkpoints.save_checkpoint('/d', opt, 1{', ' * bool(arguments)}{arguments})\n"
            )
            result = rewrite(code, Options())
            assert any("deletes old checkpoints" in m.text for m in result.messages) == said
            assert "optax-bridge" not in result.code  # a line of the summary alone
