"""Checkpoints of clu: files of old and of today are read, by a class with clu's interface."""

from pathlib import Path

import flax.serialization
import jax.numpy as jnp
import pytest

import legacy_optim
from migration_guide.codemod.results import Options
from migration_guide.codemod.rewrite import rewrite
from migration_guide.codemod.rewrite_test import settled

CLU = """
import pathlib
import flax

class Checkpoint:
    def __init__(self, folder):
        self.file = pathlib.Path(folder, "ckpt-1.flax")

    def save(self, state):
        self.file.write_bytes(flax.serialization.to_bytes(state))

    def load_state(self, state, checkpoint=None):
        return flax.serialization.from_bytes(state, self.file.read_bytes())

    def restore(self, state, checkpoint=None):
        return self.load_state(state, checkpoint)
"""
PROGRAM = """
import jax.numpy as jnp
from clu import checkpoint
from flax import optim

class Own(checkpoint.Checkpoint):
    pass

ckpt = Own(FOLDER)
template = {"o": optim.Adam(0.1).create({"w": jnp.ones(2)}), "epoch": 0}
restored = ckpt.restore(template)
step = int(restored["o"].state.step)
weights = restored["o"].target["w"].tolist()
ckpt.save(restored)
again = ckpt.restore(template)["o"].target["w"].tolist()
"""


def test_a_checkpoint_of_old_and_one_of_today_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "clu").mkdir()
    (tmp_path / "clu/__init__.py").touch()
    (tmp_path / "clu/checkpoint.py").write_text(CLU, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    optimizer = legacy_optim.Adam(0.1).create({"w": jnp.ones(2)})
    optimizer = optimizer.apply_gradient({"w": jnp.ones(2)})
    old = flax.serialization.to_bytes({"o": optimizer, "epoch": 3})
    (tmp_path / "ckpt-1.flax").write_bytes(old)
    result = settled(PROGRAM)
    assert not result.messages
    names = {"FOLDER": str(tmp_path)}
    exec(result.code, names)
    assert names["step"] == 1
    assert names["weights"] == names["again"] == optimizer.target["w"].tolist()


def test_what_is_left_by_hand_beside_it_does_not_wrap_it_twice():
    head = "from clu import checkpoint\nfrom flax import optim\no = optim.Adam(0.1).create(p)\n"
    result = settled(f"{head}ckpt = checkpoint.Checkpoint(d)\nf(optim)\n")
    assert result.code.count("reading_old_files(") == 2  # its definition, and the call


def test_public_optax_alone_says_that_files_need_converting():
    code = "from clu import checkpoint\nfrom flax import optim\no = optim.Adam(0.1).create(p)\n"
    result = rewrite(f"{code}ckpt = checkpoint.Checkpoint(d)\n", Options(recipe="optax"))
    assert "ckpt = checkpoint.Checkpoint(d)\n" in result.code
    assert any("need converting" in message.text for message in result.messages)


def test_other_checkpoints_stay(subtests: pytest.Subtests):
    for code in [
        "from clu import checkpoint\nckpt = checkpoint.Checkpoint(d)\n",
        "from mine import checkpoint\nfrom flax import optim\nckpt = checkpoint.Checkpoint(d)\n",
    ]:
        with subtests.test(code):
            assert "ckpt = checkpoint.Checkpoint(d)\n" in rewrite(code, Options()).code


def test_old_names_in_what_is_loaded_as_a_dict_are_left_to_a_person():
    code = "from clu import checkpoint\nfrom flax import optim\nd = checkpoint.load_state_dict(f)\n"
    result = rewrite(f"{code}p = d['optimizer']['target']\n", Options())
    assert [message.by_hand for message in result.messages] == [True]
