"""Old programs in processes of their own, as a user runs them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from legacy_optim.__main__ import USAGE

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """\
import sys
import jax, jax.numpy as jnp
from jax.config import config
from flax import optim
from flax.optim.adam import Adam, _AdamParamState
from flax.traverse_util import ModelParamTraversal
import helper

only = ModelParamTraversal(lambda path, _: path == "/a")
optimizer = Adam(0.1).create({"a": jnp.ones(2), "b": jnp.ones(1)}, focus=only)
grads = jax.tree_multimap(lambda p, q: p + q, optimizer.target, optimizer.target)
optimizer = optimizer.apply_gradient(grads)
x = jax.ops.index_update(jnp.zeros(3), jax.ops.index[1:], 2.0)
print(__name__, sys.argv[1:], isinstance(optimizer, optim.Optimizer), x.tolist(), helper.VALUE)
print(optimizer.target["b"].tolist(), [round(v, 4) for v in optimizer.target["a"].tolist()])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "helper.py").write_text("VALUE = 5\n", encoding="utf-8")
    return tmp_path


def _run(
    folder: Path, *args: str, command: str = "legacy_optim"
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    start = [sys.executable, "-m", "legacy_optim"]
    if command == "optax-bridge":
        start = [sys.executable, "-c", "from optax_bridge.cli.app import main; main()", "run"]
    return subprocess.run(
        [*start, *args], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", ["legacy_optim", "optax-bridge"])
def test_a_script_runs_and_says_what_it_used(folder: Path, command: str, recorded: Any):
    options = ["--todays-defaults"] if command == "optax-bridge" else []
    done = _run(folder, *options, "train.py", "--steps", "3", command=command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "__main__ ['--steps', '3'] True [0.0, 2.0, 2.0] 5",
        "[1.0] [0.9, 0.9]",
    ]
    used, _, rewrites = done.stderr.partition("To rewrite them")
    recorded("used.txt", {"train.py": used[used.index("optax-bridge: ") :]})
    assert rewrites.startswith(" for Optax: optax-bridge migrate train.py\n")
    assert ("rewrites, 0 to do by hand" in rewrites) == (command == "optax-bridge")
    restored = "optax-bridge: old defaults restored: jax_threefry_partitionable=False"
    assert (restored in rewrites) == (not options)


@pytest.mark.parametrize(
    ("program", "code"),
    [("exits.py", 7), ("nothing.py", 2), ("Notebook.ipynb", 2), (os.curdir, 2)],
)
def test_exit_codes_are_the_programs(folder: Path, program: str, code: int):
    (folder / "Notebook.ipynb").write_text('{"cells": [], "nbformat": 4}', encoding="utf-8")
    (folder / "exits.py").write_text("import sys; sys.exit(7)", encoding="utf-8")
    done = _run(folder, program)
    assert done.returncode == code
    assert ("optax-bridge migrate --write Notebook.ipynb" in done.stderr) == ("Note" in program)
    assert ("a folder without __main__.py. Name its" in done.stderr) == (program == os.curdir)


def test_misuse_prints_usage_and_help_has_examples(folder: Path):
    for args, code, printed in (
        ([], 2, ("", USAGE)),
        (["--what"], 2, ("", USAGE)),
        (["-h"], 0, (USAGE, "")),
    ):
        done = _run(folder, *args)
        assert (done.returncode, done.stdout, done.stderr) == (code, *printed)


def test_pre_linen_modules_get_a_clear_answer_and_a_dead_import_counts(folder: Path):
    text = "from flax import optim\nimport flax\nflax.nn.Dense\n"
    (folder / "modules.py").write_text(text, encoding="utf-8")
    done = _run(folder, "modules.py")
    assert done.returncode == 1
    for part in ("flax 0.3.6 had it, 0.4.0 does not", "flax.linen", "flax==0.3.6"):
        assert part in done.stderr
    assert "1 old name used in 1 place:\n  flax.optim  modules.py:1" in done.stderr


INSIDE = """\
import sys
import flax, jax
import legacy_optim
settings = repr(flax.config)
assert "flax.optim" not in sys.modules and not hasattr(jax, "tree_multimap")
classes = type(flax.traverse_util), type(jax), type(flax)
modules, finders = set(sys.modules), list(sys.meta_path)
legacy_optim.install()
legacy_optim.install()
import flax.optim, importlib.util
assert importlib.util.find_spec("flax.optim.adam").name == "flax.optim.adam"
from flax.optim import base, Momentum
from jax import tree_multimap
assert flax.optim.Momentum is Momentum is legacy_optim.Momentum
assert base.OptimizerDef is legacy_optim.OptimizerDef
try:
    flax.optim.NeverWas
except AttributeError as error:
    assert "never had 'NeverWas'" in str(error)
else:
    raise AssertionError
space = {}
exec("from flax.optim import *; from flax.optim.lamb import *; from jax.ops import *", space)
assert space["Adam"] is legacy_optim.Adam and space.keys().isdisjoint(["install", "DynamicScale"])
cells = [getattr(flax.linen, name) for name in ("GRUCell", "LSTMCell", "OptimizedLSTMCell")]
assert {cell.__module__ for cell in cells} == {"legacy_optim.recurrent"}
assert space["LAMB"] is legacy_optim.LAMB and "segment_sum" in space
legacy_optim.uninstall()
legacy_optim.uninstall()
assert "flax.optim" not in sys.modules and "jax.config" not in sys.modules
assert not hasattr(flax, "optim") and not hasattr(jax, "tree_multimap")
assert flax.linen.GRUCell is not cells[0]
assert (type(flax.traverse_util), type(jax), type(flax)) == classes
assert sys.meta_path == finders
assert not [name for name in set(sys.modules) - modules if name.startswith(("flax.", "jax.config"))]
assert repr(flax.config) == settings
from legacy_optim.uses import uses
print([use.name for use, _ in uses()])
"""


def test_install_and_uninstall_inside_a_program(folder: Path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", INSIDE],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "flax.optim.Momentum" in done.stdout
    assert "jax.tree_multimap" in done.stdout
    assert "flax.optim.*" in done.stdout and "flax.optim.Adam'" not in done.stdout


OLD_HABITS = """\
import flax, jax, jax.numpy as jnp
from flax import linen as nn, optim
from flax.training import checkpoints
state, params = nn.Dense(1).init(jax.random.PRNGKey(0), jnp.ones([1, 2])).pop("params")
optimizer = fresh = optim.Momentum(0.1).create(params)
optimizer = optimizer.apply_gradient(optimizer.target)
checkpoints.save_checkpoint("here", optimizer, 1)
restored = checkpoints.restore_checkpoint("here", fresh)
same = jax.tree_util.tree_map(lambda a, b: bool((a == b).all()), restored, optimizer)
print(type(params).__name__, dict(state), jax.tree_util.tree_all(same))
with open("here/checkpoint_1", "rb") as file:
    print(sorted(flax.serialization.msgpack_restore(file.read())))
"""


def test_flax_behaves_as_then(folder: Path):
    (folder / "habits.py").write_text(OLD_HABITS, encoding="utf-8")
    done = _run(folder, "--quiet", "habits.py")
    assert done.stdout.splitlines() == ["FrozenDict {} True", "['state', 'target']"], done.stderr
    assert "tensorflow" not in done.stderr.lower()  # Flax's note


OLD_NAMES = {
    "jax.tree_map(lambda x: x + 1, [1])": "[2]",
    "jax.tree_leaves({'a': 1})": "[1]",
    "jax.tree_util.tree_multimap(lambda a, b: a + b, [1], [2])": "[3]",
    "jax.ops.index_add(jnp.zeros(3), [0, 2], 3.0).tolist()": "[3.0, 0.0, 3.0]",
    "jax.ops.index_add(jnp.zeros((2, 2)), [1, slice(1)], 3.0).tolist()": "[[0.0, 0.0], [3.0, 0.0]]",
    **{
        f"type(x) {how} {name}": str("not" not in how)
        for name in ("jnp.DeviceArray", "jax.xla.DeviceArray", "jax.interpreters.xla.DeviceArray")
        for how in ("is", "is not", "==")
    },
    "isinstance(x, jnp.DeviceArray)": "True",
    "jax.jit(lambda y: int(isinstance(y, jnp.DeviceArray)))(1).tolist()": "0",
    "isinstance(x, jax.interpreters.pxla.ShardedDeviceArray)": "False",
    "isinstance(jax.pmap(abs)(np.ones(2)), jax.interpreters.pxla.ShardedDeviceArray)": "True",
    "type(x) == jax.interpreters.xla._DeviceArray": "True",
    "isinstance(np.ones(1), jnp.DeviceArray)": "False",
    "config.enable_omnistaging()": "None",
    "config.FLAGS.jax_enable_x64": "False",
    "__import__('jax.test_util').test_util.check_eq([x], [x])": "None",
    "jnp.where(x > 2, x=1.0, y=3.0).tolist()": "[3.0]",
    "jax.nn.normalize(jnp.array([1.0, 3.0])).round(2).tolist()": "[-1.0, 1.0]",
    "__import__('jax.experimental.optimizers', fromlist=['x']).sgd.__name__": "'sgd'",
    "jax.device_put_replicated(x, jax.devices()[:1]).shape": "(1, 1)",
    "jax.device_put_sharded([x, 2 * x], jax.devices()[:2]).tolist()": "[[1.0], [2.0]]",
    "len(jax.device_put_replicated(x, jax.devices()[:3]).sharding.device_set)": "3",
    "jax.random.shuffle(jax.random.PRNGKey(0), jnp.arange(3)).shape": "(3,)",
    "jax.lax.tie_in(1, 2), jax.curry(divmod)(7)(2)": "(2, (3, 1))",
    "[jnp.fix(-1.5 * x).tolist(), jnp.NINF, jnp.PZERO, jnp.NZERO]": "[[-1.0], -inf, 0.0, -0.0]",
    "[np.NINF, np.PZERO, np.NZERO, np.alen([1, 2])]": "[-inf, 0.0, -0.0, 2]",
    "np.asfarray([1]).tolist(), np.asscalar(np.ones(1))": "([1.0], 1.0)",
    "np.typeDict['float32'] is np.float32": "True",
    "np.histogram(np.arange(2), 1, normed=True)[0].tolist()": "[1.0]",
    "jnp.broadcast_to(arr=1.0, shape=(1,)).tolist()": "[1.0]",
    **{
        f"({call.replace('np', module)}).tolist()": result
        for module in ("np", "jnp")
        for call, result in {
            "np.in1d(np.arange(2).reshape(1, 2), np.ones(1))": "[False, True]",
            "np.msort(np.array([[3, 1], [2, 4]]))": "[[2, 1], [3, 4]]",
            "np.array([f(np.arange(2)) for f in (np.sometrue, np.alltrue)])": "[True, False]",
            "np.cumproduct(np.array([2, 3])) + np.round_(0.6)": "[3.0, 7.0]",
            "np.product(np.arange(1, 5)) + np.trapz(np.arange(2))": "24.5",
            "np.row_stack((np.ones(1), np.zeros(1)))": "[[1.0], [0.0]]",
            "np.clip(np.arange(4), a_min=1, a_max=2)": "[1, 1, 2, 2]",
            "np.reshape(np.arange(2), newshape=(2, 1))": "[[0], [1]]",
            "np.quantile(np.arange(3.0), 0.3, interpolation='higher')": "1.0",
            "np.array(np.issubsctype(np.int32, np.integer))": "True",
        }.items()
    },
    "util.safe_map(divmod, [7], [2])": "[(3, 1)]",
    "util.unzip2([(1, 2), (3, 4)])": "((1, 3), (2, 4))",
    "util.unzip3([(1, 2, 3), (4, 5, 6)])": "((1, 4), (2, 5), (3, 6))",
    "refuses(util.safe_zip, [1], [1, 2])": "True",
    "hcb.id_tap(lambda *_: None, 1), hcb.id_tap(lambda *_: None, 1, result=2)": "(1, 2)",
    "hcb.call(np.negative, x.astype(int), result_shape=x.astype(int)).tolist()": "[-1]",
    "printed(hcb.id_tap, lambda value, _, more: print(value + more), 1, more=2)": "'3\\n'",
    "printed(hcb.id_print, x, what='loss', sep='; ')": "'loss [1.]\\n'",
    "'HloModule' in jax.xla_computation(jnp.sum, static_argnums=1)(x, 0).as_hlo_text()": "True",
    "np.asfarray([1], np.float32).dtype.name": "'float32'",
}


def test_removed_names_answer(folder: Path):
    lines = "\n".join(f"print(repr(({expression})))" for expression in OLD_NAMES)
    first = (
        "import jax, jax.api, jax.interpreters.xla, jax.interpreters.pxla, jax.numpy as jnp\n"
        "import numpy as np, jax.experimental.host_callback as hcb\nfrom jax import util\n"
        "from jax.config import config\nx = jnp.ones(1)\n"
        "def refuses(function, *args):\n    try: function(*args)\n"
        "    except ValueError: return True\n"
        "import contextlib, io\n"
        "def printed(function, *args, **kwargs):\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as output:\n"
        "        function(*args, **kwargs), hcb.barrier_wait()\n"
        "    return output.getvalue()\n"
    )
    (folder / "names.py").write_text(f"{first}{lines}\n", encoding="utf-8")
    done = _run(folder, "--quiet", "names.py")
    assert done.returncode == 0, done.stderr
    assert dict(zip(OLD_NAMES, done.stdout.splitlines(), strict=True)) == OLD_NAMES


SUMMARIES = """\
import glob, sys
from importlib.machinery import PathFinder
find_spec = PathFinder.find_spec
missing = ["tensorflow", *sys.argv[1:]]  # as if they were not installed
PathFinder.find_spec = lambda name, *rest: None if name in missing else find_spec(name, *rest)
import numpy as np
from flax.metrics import tensorboard
writer = tensorboard.SummaryWriter("summaries")
writer.scalar("loss", np.float32(2.0), np.int32(1))
writer.hparams({"rate": 0.1})
writer.close()
with open(glob.glob("summaries/*")[0], "rb") as file:
    written = file.read()
print([name in written for name in (b"loss", b"| rate | 0.1 |")])
"""


def test_summaries_are_written_without_tensorflow(folder: Path):
    (folder / "summaries.py").write_text(SUMMARIES, encoding="utf-8")
    done = _run(folder, "--quiet", "summaries.py")
    assert done.stdout.splitlines() == [str([True] * 2)], done.stderr
    done = _run(folder, "--quiet", "summaries.py", "tensorboardX")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("is there: pip install tensorboardX")
