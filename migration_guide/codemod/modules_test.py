"""Modules made by hypothesis: whatever comes in, what comes out is Python, is complete, and stays
as it is."""

import ast

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from migration_guide.codemod.context import Options
from migration_guide.codemod.rewrite import rewrite, undefined

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


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    derandomize=True,
)
@given(MODULES.filter(_parses), st.booleans(), st.booleans())
def test_any_module(code: str, exact: bool, rename: bool):
    options = Options(exact=exact, rename=rename)
    result = rewrite(code, options)
    assert "please report" not in result.refused, (result.refused, code)
    assert _parses(result.code)
    assert undefined(result.code) <= undefined(code)
    assert rewrite(result.code, options).code == result.code
