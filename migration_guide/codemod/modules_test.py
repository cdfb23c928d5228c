"""Modules made by hypothesis: whatever comes in, what comes out is Python, is complete, and stays
as it is."""

import ast
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from migration_guide.codemod import driver
from migration_guide.codemod.results import Options
from migration_guide.codemod.rewrite import rewrite, undefined_names

IMPORTS = (
    "from flax import optim",
    "from flax import optim as o2, struct",
    "import flax",
    "import flax.optim",
    "from flax.optim import Adam, Momentum as M",
    "from flax.optim.base import Optimizer, OptimizerDef",
    "import jax, jax.numpy as jnp",
    "from jax import tree_map",
    "from torch import optim",
    "import optax",
    "from . import optim",
)
NAMES = st.sampled_from(["optimizer", "opt", "state", "x", "self.optimizer", "state.opt", "d['k']"])
ATOMS = st.one_of(
    NAMES,
    st.sampled_from(
        [
            "optim.Adam",
            "flax.optim.Momentum",
            "M",
            "Adam",
            "o2.LAMB",
            "getattr(optim, n)",
            "1",
            "None",
        ]
    ),
)


def _expressions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    call = st.sampled_from(
        [
            "{}.create({})",
            "{}.apply_gradient({})",
            "{}.apply_gradient({}, learning_rate=0.1)",
            "({}, {})",
            "{}.replace(target={})",
            "{}.replace(state={})",
            "jax.jit({})({})",
            "tree_map({}, {})",
            "[{}, *{}]",
            "{}.create({}, focus=t)",
            "optim.MultiOptimizer((t, {}), {})",
            "({} if c else {})",
            "{}.optimize({})",
            "{}.apply_gradient({}, **kw)",
            "f({}, optimizer={})",
            "optim.WeightNorm({}, {})",
            "(lambda opt: {})({})",
        ]
    )
    one = st.sampled_from(
        [
            "{}.target",
            "{}.state.step",
            "{}.state",
            "{}(0.1)",
            "{}(lr, beta1=0.5)",
            "{}(**kw)",
            "{}.optimizer_def",
            "{}.optimizer_def.hyper_params.learning_rate",
            "{}.replicate()",
            "[o.target for o in {}]",
            "-{}",
            "isinstance({}, optim.Optimizer)",
            "jax.ops.index_update({}, 0, 1)",
            "{}.compute_gradient(f)",
            "{}[0]",
        ]
    )
    return st.one_of(
        st.builds(lambda form, a, b: form.format(a, b), call, inner, inner),
        st.builds(lambda form, a: form.format(a), one, inner),
    )


EXPRESSIONS = st.recursive(ATOMS, _expressions, max_leaves=5)
SIMPLE = st.one_of(
    st.builds(lambda name, value: f"{name} = {value}", NAMES, EXPRESSIONS),
    st.builds(lambda value: f"{value}  # a comment", EXPRESSIONS),
    st.builds(lambda name, value: f"{name}, loss = {value}", NAMES, EXPRESSIONS),
    st.builds(lambda value: f"a, b, c = {value}", EXPRESSIONS),
    st.sampled_from(IMPORTS),
)
BLOCK = st.sampled_from(
    [
        "def train(optimizer, state, x):",
        "class T:",
        "if x:",
        "for opt in x:",
        "@jax.jit\ndef g(opt: optim.Optimizer, *a):",
        "class S(optim.OptimizerDef):",
        "with open(x) as opt:",
        "try:",
        "async def h(state: 'flax.optim.Optimizer'):",
    ]
)


def _indented(head: str, lines: list[str]) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    tail = "\nfinally:\n    pass" if head == "try:" else ""
    return f"{head}\n{body}{tail}"


STATEMENTS = st.one_of(
    SIMPLE, st.builds(_indented, BLOCK, st.lists(SIMPLE, min_size=1, max_size=3))
)
MODULES = st.builds(
    lambda imports, lines: "\n".join([*imports, *lines]) + "\n",
    st.lists(st.sampled_from(IMPORTS), max_size=3, unique=True),
    st.lists(STATEMENTS, max_size=6),
)


def _parses(code: str) -> bool:
    try:
        compile(code, "<module>", "exec", ast.PyCF_ONLY_AST)
    except SyntaxError:
        return False
    return True


FEW = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    derandomize=True,
)
OPTIONS = st.sampled_from([Options(), Options(recipe="exact"), Options(recipe="optax")])


@FEW
@given(MODULES.filter(_parses), OPTIONS)
def test_any_module(code: str, options: Options):
    result = rewrite(code, options)
    assert "please report" not in result.refused, (result.refused, code)
    assert _parses(result.code)
    assert undefined_names(result.code) <= undefined_names(code)
    assert rewrite(result.code, options).code == result.code


# What files of one program import from each other, which they call a, b and c.
SHARED = st.sampled_from(
    [
        "import a",
        "from b import *",
        "from . import c",
        "from a import optim",
        "from b import Adam, make",
        "from c import S, g as make",
        "__all__ = ['Adam', 'optim']",
        "def make(p): return optim.Adam(0.1).create(p)",
        "def make(p): return a.make(p)",
        "x = make(p)",
        "x = a.make(p).apply_gradient(g)",
        "x = b.x",
        "d = c.S(0.1)",
        "x = c.S(optim.Adam(0.1)).create(p)",
        "class Own:\n    def apply_gradient(self, g): return self",
        "from flax.optim import *",
    ]
)
FILES = st.builds(
    lambda imports, lines: "\n".join([*imports, *lines]) + "\n",
    st.lists(st.sampled_from(IMPORTS), max_size=2, unique=True),
    st.lists(st.one_of(SHARED, SHARED, STATEMENTS), max_size=5),
).filter(_parses)


@settings(FEW, max_examples=40)
@given(st.lists(FILES, min_size=2, max_size=3), OPTIONS)
def test_any_tree(codes: list[str], options: Options):
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name, f"{letter}.py") for letter, _ in zip("abc", codes, strict=False)]
        for path, code in zip(paths, codes, strict=True):
            path.write_text(code, encoding="utf-8")
        first = driver.migrate([Path(name)], options)
        assert [r.refused for r in first.results if "please report" in r.refused] == []
        driver.save(first.results)
        for path, code in zip(paths, codes, strict=True):
            new = path.read_text(encoding="utf-8")
            assert undefined_names(new) <= undefined_names(code) | {"legacy_optim"}
        again = driver.migrate([Path(name)], options)
        assert [(r.old, r.code) for r in again.changed_files] == []


@pytest.mark.parametrize("stem", ["train", "__init__"])
def test_a_dead_import_stays_where_others_may_import_it_from(stem: str, tmp_path: Path):
    (tmp_path / f"{stem}.py").write_text("from flax.optim import Adam\nx = 1\n")
    (tmp_path / "main.py").write_text("from flax import optim\ny = optim.Adam(0.1)\n")
    new = {
        result.path.stem: result.code
        for result in driver.migrate([tmp_path], Options()).changed_files
    }
    assert ("from legacy_optim import Adam\n" in new[stem]) == (stem == "__init__")
