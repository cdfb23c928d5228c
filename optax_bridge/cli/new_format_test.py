"""A format is one file: nothing else is told of it, and every command takes it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from optax_bridge.checkpoints import formats as folder
from optax_bridge.checkpoints import read_checkpoint
from optax_bridge.checkpoints.read import formats
from optax_bridge.cli.checkpoints_test import ADAM, AS_ADAM, bridge
from optax_bridge.metadata.paths import leaves

TOY = '''
"""Text: a line for each array, with its path, dtype, shape and bytes."""

import json

import numpy as np
from flax import serialization
from flax.traverse_util import flatten_dict, unflatten_dict

from optax_bridge.checkpoints.formats import Contents, Format

HEAD = b"toy\\n"


def find(path):
    return path if path.is_file() and path.read_bytes().startswith(HEAD) else None


def read(path):
    found = {}
    for line in path.read_bytes()[len(HEAD) :].splitlines():
        name, dtype, shape, data = json.loads(line)
        found[name] = np.frombuffer(bytes.fromhex(data), dtype).reshape(shape)
    return Contents(unflatten_dict(found, sep="/"))


def write(path, tree, name):
    lines = []
    for key, leaf in flatten_dict(serialization.to_state_dict(tree), sep="/").items():
        leaf = np.asarray(leaf)
        lines.append(json.dumps([key, leaf.dtype.str, leaf.shape, leaf.tobytes().hex()]).encode())
    path.write_bytes(HEAD + b"\\n".join(lines))


FORMAT = Format("Toy", "toy", find=find, read=read, write=write)
'''


@pytest.fixture
def toy(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    added = tmp_path_factory.mktemp("formats")
    (added / "toy.py").write_text(TOY)
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(added)])
    formats.cache_clear()
    yield
    formats.cache_clear()
    sys.modules.pop(f"{folder.__name__}.toy")


@pytest.mark.usefixtures("toy")
def test_file_alone_adds_a_format_to_every_command(tmp_path: Path) -> None:
    new, back = tmp_path / "new", tmp_path / "back"
    assert "compared" in bridge("convert", ADAM, new, *AS_ADAM, "--format", "toy").stdout
    shown = bridge("inspect", new).stdout
    assert "Toy, a TrainState" in shown and "step 4" in shown
    assert "kernel float32[4, 3] 48 bytes" in shown
    bridge("convert", new, back, *AS_ADAM, "--to", "legacy")
    assert back.read_bytes() == Path(ADAM).read_bytes()
    expected = dict(leaves(read_checkpoint(ADAM).tree["target"]))
    for path, leaf in leaves(read_checkpoint(new).tree["params"]):
        np.testing.assert_array_equal(leaf, expected[path])
