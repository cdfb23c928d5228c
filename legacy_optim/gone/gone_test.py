"""The inventory and its remedies: what they name is gone, what they give is there."""

import importlib.metadata
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from legacy_optim import gone
from legacy_optim.gone import remedies
from legacy_optim.gone.inventory import source, today

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = json.loads((ROOT / "legacy_optim/gone/names.json").read_text(encoding="utf-8"))


def _is_todays(name: str) -> bool:
    """Whether the installed release is the one that the inventory asked."""
    project = {"orbax.checkpoint": "orbax-checkpoint"}
    package = remedies.package(name)
    installed = importlib.metadata.version(project.get(package, package))
    return installed == INVENTORY["today"].get(package)


@pytest.mark.parametrize("name", remedies.RENAMED)
def test_a_renamed_name_is_gone_and_its_new_name_is_there(name: str):
    entry = gone.find(name)
    new = remedies.RENAMED[name]
    assert entry is not None and entry.new == new
    if _is_todays(name):
        assert today.value(new) is not today.MISSING


@pytest.mark.parametrize("name", remedies.TEXTS)
def test_a_name_with_a_text_is_gone_or_holds_what_is(name: str):
    below = [known for known in gone.names() if known.startswith(f"{name}.")]
    assert gone.find(name) is not None or below


@pytest.mark.parametrize(
    ("function", "keyword"),
    [(function, keyword) for function, table in remedies.KEYWORDS.items() for keyword in table],
)
def test_a_renamed_keyword_is_gone_and_its_new_name_is_taken(function: str, keyword: str):
    entry = gone.find_keyword(function, keyword)
    assert entry is not None
    if entry.new is not None and _is_todays(function):
        assert today.takes(today.value(function), entry.new)
        assert not today.takes(today.value(function), keyword)


@pytest.mark.parametrize("function", remedies.BY_POSITION)
def test_what_goes_by_position_is_no_keyword_today(function: str):
    names = remedies.BY_POSITION[function]
    assert all(gone.find_keyword(function, name) is not None for name in names)
    if not _is_todays(function):
        pytest.skip("an older release is installed")
    parameters = list(inspect.signature(today.value(function)).parameters.values())
    first = parameters[: len(names)]
    assert all(p.kind is p.POSITIONAL_ONLY for p in first)
    assert len(first) == len(names)


def test_what_has_moved_is_where_the_inventory_says():
    wrong = [
        (old, new)
        for old, new in INVENTORY["moved"].items()
        if _is_todays(new) and today.value(new) is today.MISSING
    ]
    assert wrong == []


def test_what_is_there_is_no_name_that_is_gone():
    names = ["jax.jit", "jax.numpy.clip", "jax.config.update", "flax.linen.Dense", "numpy.int32"]
    names += ["flax.optim", "flax.optim.Adam"]  # legacy_optim stands for them
    assert [name for name in names if gone.find(name) is not None] == []


@pytest.mark.parametrize("name", [*gone.names(), *(f"{f}({k})" for f, k in gone.keywords())][::50])
def test_a_message_names_the_name_since_when_and_what_to_do(name: str):
    function, _, keyword = name.rstrip(")").partition("(")
    entry = gone.find_keyword(function, keyword) if keyword else gone.find(name)
    assert entry is not None
    assert name.rstrip(")") in entry.message
    assert f"{entry.last} had it, {entry.since} has not" in entry.message
    assert entry.remedy


# In a process of its own, because it imports all there is.
EVERY_NAME = """\
import contextlib, importlib, io, sys, types, warnings
warnings.simplefilter("ignore")
import legacy_optim
legacy_optim.install()
from legacy_optim import gone
from legacy_optim.gone.inventory import today

silent, answered, said = [], 0, 0
for name in gone.names():
    owner, _, last = name.rpartition(".")
    if today.module(owner) in (today.MISSING, today.UNKNOWN) and owner not in gone.modules():
        continue  # an attribute of a class: see the closing lines
    for code in (f"from {owner} import {last}", f"import {owner} as m; m.{last}",
                 f"import {owner.partition('.')[0]}; {name}"):
        try:
            exec(code, {})
        except ImportError as error:
            text = str(error)
        except AttributeError as error:
            text = str(error)
        else:
            answered += 1
            continue
        if " is gone: " in text and "What to do: " in text:
            said += 1
        elif not text.startswith(f"module {owner.partition('.')[0]!r} has no attribute"):
            silent.append((code, text))
for name in gone.modules():
    if name in sys.modules or name.startswith("flax.optim"):
        answered += 1
        continue
    try:
        importlib.import_module(name)
        answered += 1
    except ImportError as error:
        said += " is gone: " in str(error)
        if " is gone: " not in str(error):
            silent.append((name, str(error)))
print(answered, said, len(silent))
print(*silent[:20], sep="\\n")
"""


def test_run_is_silent_about_no_name_in_any_spelling():
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", EVERY_NAME],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answered, said, silent = map(int, done.stdout.splitlines()[0].split())
    assert silent == 0, done.stdout
    assert answered > 500 and said > 5000


PROGRAM = """\
import flax, jax, jax.numpy as jnp
import jax.api as japi
from jax import linear_util, partial
from jax.config import config
from jax.experimental import host_callback, optimizers
from jax.experimental.pjit import with_sharding_constraint
from jax.interpreters.xla import _DeviceArray
from jax.util import safe_zip
import numpy as np
import optax

config.enable_omnistaging()
jax.config.enable_omnistaging()
assert japi.jit is jax.jit and partial(max, 1)(2) == 2 and optax.additive_weight_decay
assert isinstance(jnp.ones(1), _DeviceArray) and safe_zip([1], [2]) == [(1, 2)]
assert linear_util.wrap_init and optimizers.adam and with_sharding_constraint
assert jnp.clip(a=jnp.arange(4), a_min=1, a_max=2).tolist() == [1, 1, 2, 2]
assert jnp.where(jnp.arange(2) > 0, x=3, y=jax.jit(fun=jnp.sum)(jnp.ones(4))).tolist() == [4, 3]
assert np.float is float and np.zeros(1, np.int).dtype == int and np.object is object
assert "HloModule" in jax.xla_computation(lambda x: x + 1)(1.0).as_hlo_text()
double = lambda x: 2 * x
assert host_callback.call(double, jnp.ones(1), result_shape=jnp.ones(1)).tolist() == [2.0]
assert not hasattr(jax, "soft_pmap")
try:
    _DeviceArray(None, None)
except TypeError as error:
    assert "jax.numpy.asarray" in str(error)
else:
    raise AssertionError
jnp.nn = jax.nn.softmax(jnp.ones(2), {last})
"""


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("where=True, initial=0.0", "jax.nn.softmax(initial=) is gone: jax 0."),
        ("flax.core.Scope({}).collection('params')", "flax.core.Scope.collection is gone: flax 0."),
    ],
    ids=["keyword", "attribute"],
)
def test_a_program_of_that_time(tmp_path: Path, last: str, said: str):
    (tmp_path / "program.py").write_text(PROGRAM.format(last=last), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", "legacy_optim", "program.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "jnp.nn = jax.nn.softmax" in done.stderr, done.stderr
    assert f"optax-bridge: {said}" in done.stderr


PACKAGE = {
    "__init__.py": "from small._private import *\nfrom functools import partial\nimport os\n"
    "from small import shown as other\n",
    "_private.py": "def f(a, *, b=1, _c=2, **d): pass\n"
    "class Base:\n    x: int\n    def go(self, much): pass\n"
    "class Sub(Base):\n    y = 2\n    def __init__(self, z): pass\n",
    "shown.py": "import json\nfrom small._private import f as g\n"
    "def own(q): return json\n_hidden = 1\nvalue = 3\ndel value\n",
}


def test_both_ways_of_reading_see_the_same(tmp_path: Path):
    (tmp_path / "small").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "small" / name).write_text(text, encoding="utf-8")
    read = source.Release(tmp_path, "small").snapshot()
    script = ROOT / "legacy_optim/gone/inventory/imported.py"
    done = subprocess.run(
        [sys.executable, str(script), "small"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    imported = json.loads(done.stdout)
    assert set(read["small"]) == {"f", "Base", "Sub", "partial", "shown", "other"}
    assert read["small"]["f"] == {"keywords": ["a", "b"]}
    assert read["small"]["Sub"] == {"keywords": ["z"], "attributes": {"y": []}}
    assert read["small.shown"] == {
        "g": {"keywords": ["a", "b"]},
        "own": {"keywords": ["q"]},
    }
    for name in ("f", "Sub"):
        assert imported["small"][name] == read["small"][name]
    assert imported["small.shown"] == read["small.shown"]
