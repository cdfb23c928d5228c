"""The inventory and its remedies: what they name is gone, what they give is there and does it."""

import ast
import importlib.metadata
import inspect
import io
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from legacy_optim import gone
from legacy_optim.answering import value
from legacy_optim.gone import remedies

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = json.loads((ROOT / "legacy_optim/gone/names.json").read_text(encoding="utf-8"))
pytestmark = pytest.mark.filterwarnings("ignore")


def _version(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _is_gone_here(entry: gone.Gone | None) -> bool:
    """True if the installed release is one that no longer has it."""
    assert entry is not None
    installed = importlib.metadata.version(entry.package.replace(".", "-"))
    return _version(installed) >= _version(entry.since)


def _parameters(function: str) -> list[inspect.Parameter]:
    return [*inspect.signature(value(function)).parameters.values()]


def test_the_inventory_is_right_about_what_is_installed():
    by_owner: dict[str, list[str]] = {}
    for old, today in (INVENTORY["moved"] | remedies.RENAMED).items():
        entry = gone.find(old)
        assert entry is not None and entry.new == today, old
        by_owner.setdefault(old.rpartition(".")[0], []).append(old.rpartition(".")[2])
        # Four names went to jax.extend.core later than they left their old place.
        is_later = today.startswith("jax.extend.core.") and jax.__version_info__ < (0, 10)
        if _is_gone_here(entry) and not is_later:
            value(today)
    for function, table in remedies.KEYWORDS.items():
        for keyword, text in table.items():
            entry = gone.find_keyword(function, keyword)
            assert entry and entry.new == (text if text.isidentifier() else None)
            if _is_gone_here(entry) and entry.new is not None:
                takes = {p.name for p in _parameters(function) if p.kind is not p.POSITIONAL_ONLY}
                assert entry.new in takes and keyword not in takes, function
    for function, names in remedies.BY_POSITION.items():
        if all(_is_gone_here(gone.find_keyword(function, name)) for name in names):
            parameters = _parameters(function)[: len(names)]
            assert all(p.kind is p.POSITIONAL_ONLY for p in parameters), function
            assert len(names) == 1 or tuple(p.name for p in parameters) == names, function
    old, new = ("learning_rate", "decay", "eps", "centered"), _parameters("optax.rmsprop")
    alike = itertools.takewhile(lambda i: old[i] == new[i].name, range(len(old)))
    assert gone.alike_by_position("jax.experimental.optix.rmsprop") == len([*alike])
    for name in remedies.TEXTS:
        below = any(known.startswith(f"{name}.") for known in gone.names())
        assert gone.find(name) is not None or below, name
    for owner in {*gone.owners(), *by_owner}:
        assert gone.names_with_an_equal(owner) == sorted(by_owner.get(owner, ())), owner
    assert gone.functions_by_position("jax.numpy").keys() == {"clip", "imag", "real", "where"}
    assert gone.renamed_keywords("jax.numpy")["clip"] == {"a_max": "max", "a_min": "min"}
    for deprecated, today in remedies.DEPRECATED.items():
        assert value(deprecated)() == value(today)()


def _advice() -> str:
    """Each remedy after the names that it is for: of more than three the first and the last."""
    names: dict[str, list[str]] = {}
    keywords = INVENTORY["keywords"].items()
    known = {*gone.names(), *remedies.TEXTS, *remedies.RENAMED}
    entries = [gone.find(name) for name in sorted(known)]
    entries += [gone.find_module(name) for name in INVENTORY["objects"]]
    entries += [gone.find_keyword(function, name) for function, own in keywords for name in own]
    for entry in filter(None, entries):
        names.setdefault(entry.remedy, []).append(entry.name)
    for function, parameters in remedies.BY_POSITION.items():
        names.setdefault(f"give {', '.join(parameters)} by position", []).append(function)
    shown = {r: n if len(n) < 4 else [n[0], f"{len(n) - 2} more", n[-1]] for r, n in names.items()}
    return "\n".join(sorted(f"{', '.join(shown[remedy])}: {remedy}" for remedy in shown))


def test_every_name_has_the_remedy_that_is_recorded(recorded: Any):
    packages = INVENTORY["today"]
    answered = [name for package in packages for name in gone.answered_modules(package)]
    recorded("advice.txt", {"remedies": _advice(), "modules": "\n".join(answered)})


def test_a_message_says_since_when_and_what_to_do():
    for name, part in {
        "numpy.trapz": ": numpy 2.3.5 had it, 2.4.6 does not. What to do: use numpy.trapezoid",
        "numpy.distutils": f": numpy 2.4.6 had it, {INVENTORY['today']['numpy']} does not",
    }.items():
        entry = gone.find(name)
        assert entry and part in entry.message, entry
    quantiles = {entry.name for entry in gone.find_keyword_by_ending("quantile", "interpolation")}
    assert quantiles and not any("nan" in name for name in quantiles)
    owners = [gone.find_attribute(cls, "itemset") for cls in ("ndarray", "darray")]
    assert [bool(entries) for entries in owners] == [True, False]
    # legacy_optim stands for flax.optim
    for name in ("jax.jit", "jax.config.update", "flax.linen.Dense", "flax.optim.Adam"):
        assert gone.find(name) is None


X = np.array([[3.0, -1.5], [2.0, 4.5]])
SPACE = dict(
    {"jax": jax, "jnp": jnp, "np": np, "x": jnp.array(X), "values": jnp.array([2.0, 4.5])},
    index=(0, 1), value=2.0, xs=[1, 2], ys=[3, 4], f=lambda *args: args, args=[1.0], a=X, obj=X,
    pairs=[(1, 2), (3, 4)], triples=[(1, 2, 3)], shards=[jnp.ones(2)], devices=jax.devices()[:1],
    dtype=np.int32, t=np.float32, order=">",
)  # fmt: skip
# What the function of that name gave for these, in jax 0.4.13 and NumPy 1.25; None: that it runs.
ADVICE: dict[str, Any] = {
    "jax.device_put_sharded": [[1.0, 1.0]],
    "jax.lib.xla_bridge.get_backend": None,
    "jax.numpy.NINF": -np.inf,
    "jax.numpy.NZERO": -0.0,
    "jax.numpy.PZERO": 0.0,
    "jax.numpy.fix": [[3.0, -1.0], [2.0, 4.0]],
    "jax.numpy.in1d": [False, False, True, True],
    "jax.numpy.msort": [[2.0, -1.5], [3.0, 4.5]],
    "jax.ops.index_add": [[3.0, 0.5], [2.0, 4.5]],
    "jax.ops.index_max": [[3.0, 2.0], [2.0, 4.5]],
    "jax.ops.index_min": X.tolist(),
    "jax.ops.index_mul": [[3.0, -3.0], [2.0, 4.5]],
    "jax.ops.index_update": [[3.0, 2.0], [2.0, 4.5]],
    "jax.test_util.check_close": AssertionError,
    "jax.test_util.check_eq": AssertionError,
    "jax.util.safe_map": [(1, 3), (2, 4)],
    "jax.util.safe_zip": [(1, 3), (2, 4)],
    "jax.util.unzip2": ((1, 3), (2, 4)),
    "jax.util.unzip3": ((1,), (2,), (3,)),
    "jax.xla_computation": None,
    "numpy.NINF": -np.inf,
    "numpy.NZERO": -0.0,
    "numpy.PZERO": 0.0,
    "numpy.alen": 2,
    "numpy.asfarray": X.tolist(),
    "numpy.asscalar": ValueError,  # of one element alone
    "numpy.cast": [[3, -1], [2, 4]],
    "numpy.in1d": [False, False, True, True],
    "numpy.issctype": True,
    "numpy.msort": [[2.0, -1.5], [3.0, 4.5]],
    "numpy.nbytes": 4,
    "numpy.ndarray.itemset": None,
    "numpy.ndarray.newbyteorder": X.view(X.dtype.newbyteorder(">")).tolist(),
    "numpy.ndarray.ptp": 6.0,
    "numpy.ndarray.tostring": X.tobytes(),
    "numpy.obj2sctype": np.float64,
    "numpy.recfromcsv": [(1, 2.5), (3, 4.5)],
    "numpy.recfromtxt": [[1, 2], [3, 4]],
    "numpy.sctype2char": "f",
}


def _code(text: str) -> ast.stmt | None:
    try:
        return ast.parse(text).body[0]
    except SyntaxError:
        return None


def test_advice_that_is_code_does_what_the_old_name_did():
    table = {name: text for name, text in remedies.TEXTS.items() if _code(text)}
    assert table.keys() == ADVICE.keys()
    for name, text in table.items():
        file = io.StringIO("A,b\n1,2.5\n3,4.5\n" if "csv" in name else "1 2\n3 4\n")
        space = {**SPACE, "a": X.copy(), "file": file}
        try:
            exec(text if ADVICE[name] is None else f"result = {text}", space)
            result: Any = space.get("result")
        except (AssertionError, ValueError) as error:
            result = type(error)
        is_array = isinstance(result, np.ndarray | np.generic | jax.Array)
        # The text, for the sign of zero.
        assert repr(result.tolist() if is_array else result) == repr(ADVICE[name]), name


def test_names_in_advice_are_there():
    texts = [*remedies.TEXTS.values(), *(t for k in remedies.KEYWORDS.values() for t in k.values())]
    text = re.sub(r"\bjnp\.", "jax.numpy.", re.sub(r"\bnp\.", "numpy.", str(texts)))
    names = re.findall(r"(?<!\.)\b(?:jax|numpy|optax|flax|functools)\.[\w.]*\w", text)
    assert len(names) > 100
    for name in names:
        value(name)


# In a process of its own, because it imports all there is.
EVERY_NAME = """\
import importlib
import legacy_optim
legacy_optim.install()
from legacy_optim import gone

def is_module(name):
    try:
        return bool(importlib.import_module(name))
    except ImportError as error:  # here, but what it needs is not
        return False

answered, explained, silent = 0, 0, []
modules = gone._inventory()["modules"] | gone._inventory()["objects"]
for name in {*gone.names(), *modules}:
    owner, _, last = name.rpartition(".")
    if owner not in modules and not is_module(owner):
        continue  # an attribute of a class: see the closing lines
    for code in (f"from {owner} import {last}", f"import {owner} as m; m.{last}",
                 f"import {owner.partition('.')[0]}; {name}"):
        try:
            exec(code, {})
            answered += 1
        except (ImportError, AttributeError) as error:
            if " is gone: " in str(error) and "What to do: " in str(error):
                explained += 1
            elif not str(error).startswith(f"module {owner.partition('.')[0]!r} has no attribute"):
                silent.append((code, str(error)))
assert not silent and answered > 500 and explained > 5000, (answered, explained, silent[:20])
"""


def test_run_is_silent_about_no_name_in_any_spelling():
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore", "-c", EVERY_NAME]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
