"""How optimizers get from where they are made to where they are used."""

from pathlib import Path

import pytest

from migration_guide.codemod import driver
from migration_guide.codemod.results import Options
from migration_guide.codemod.rewrite import rewrite

MADE = "optim.Adam(0.1).create(p)"
CASES = {
    "class-attribute": f"class T:\n    best = {MADE}\n    def f(self): return self.best.target\n",
    "annotated-class-attribute": f"class T:\n    best: object = {MADE}\nT.best.target\n",
    "class-attribute-definition": (
        "class T:\n    OPT = optim.Adam(0.1)\n    def f(self): return self.OPT.create(p).target\n"
    ),
    "named-tuple": (
        "from typing import NamedTuple\nclass T(NamedTuple):\n    n: int\n    o: optim.Optimizer\n"
        "n, x = T(1, y)\nx.target\n"
    ),
    "dict-of-keywords": f"for k, v in dict(a={MADE}).items(): v.target\n",
    "map-over": f"map(lambda x, k: x.target, [{MADE}], ks)\n",
    "map-makes": f"def f(p): return {MADE}\nfor x in map(f, ps): x.target\n",
    "filter": f"for x in filter(lambda x: x.target, [{MADE}]): pass\n",
    "filtered": f"for x in filter(None, [{MADE}]): x.target\n",
    "shape-of": f"x = jax.eval_shape(lambda: {MADE})\nx.target\n",
    "while-loop": f"jax.lax.while_loop(lambda o: o.target, lambda q: q.target, {MADE})\n",
    "for-loop": f"jax.lax.fori_loop(0, 9, lambda i, o: o.target, {MADE})\n",
    "list-annotation": "from typing import List\ndef f(xs: List[optim.Optimizer]): xs[0].target\n",
    "tuple-annotation": (
        "from typing import Tuple\ndef f(t: Tuple[int, optim.Optimizer]):\n"
        "    n, x = t\n    x.target\n"
    ),
    "partial-by-keyword": (
        f"import functools\ndef f(o, k): o.target\nfunctools.partial(f, k=1)({MADE})\n"
    ),
    "partial-by-position": (
        f"import functools\ndef f(k, o): o.target\nfunctools.partial(f, 1)({MADE})\n"
    ),
    "property": (
        f"class T:\n    def __init__(self): self.all = dict(a={MADE})\n    @property\n"
        "    def opt(self): return self.all['a']\n    def f(self): return self.opt.target\n"
    ),
    "walrus": f"print((x := {MADE}).target, x.target)\n",
    "got": f"d = dict(a={MADE})\nd.get('a').target\nd.pop('a').target\n",
    "values": f"for v in dict(a={MADE}).copy().values(): v.target\n",
    "nested-comprehension": f"[x.target for xs in [[{MADE}]] for x in xs]\n",
    "last-of-a-tuple": f"t = 1, 2, {MADE}\nt[-1].target\n",
    "tuples-of-two-lengths": (
        f"def f(x):\n    if x: return 1, {MADE}\n    return 2, 3, {MADE}\n"
        "n, a = f(1)\nn, m, b = f(0)\na.target, b.target\n"
    ),
    "starred-in-a-tuple": f"for x in ({MADE}, *dict(a={MADE}).values()): x.target\n",
    "starred-in-a-list": f"for x in [*[{MADE}]]: x.target\n",
    "starred-in-a-dict": f"for x in {{**dict(a={MADE})}}.values(): x.target\n",
    "remaining-items": f"n, *xs = 1, {MADE}, {MADE}\nfor x in xs: x.target\n",
    "scan": f"def f(o, x): return o, o.target\no, ys = jax.lax.scan(f, {MADE}, xs)\no.target\n",
    "second-branch": f"jax.lax.cond(c, lambda x: 1, lambda x: x.target, {MADE})\n",
    "dataclass-by-position": (
        f"class S:\n    n: int\n    held: object\ndef f(s): return s.held.target\nf(S(1, {MADE}))\n"
    ),
    "optional": "from typing import Optional\ndef f(o: Optional[optim.Optimizer]): o.target\n",
    "or-none": "def f(o: optim.Optimizer | None): o.target\n",
    "restored-by-clu": f"def f(ckpt): return ckpt.restore_or_initialize({MADE})\nf(c).target\n",
}


def test_an_optimizer_is_known_where_it_arrives(subtests: pytest.Subtests):
    for case in CASES:
        with subtests.test(case):
            result = rewrite(f"import jax\nfrom flax import optim\n{CASES[case]}", Options())
            assert result.messages == ()
            assert ".params" in result.code
            assert ".target" not in result.code
            assert "legacy" not in result.code


TORCH = (
    "import torch\nclass Agent:\n    def __init__(self):\n"
    "        self.optimizer = torch.optim.Adam(p)\n    def f(self): return self.optimizer.state\n"
    "    def g(self): return look(self.optimizer)\ndef look(optimizer): return optimizer.target\n"
)
FLAX = """from flax import optim
def train(optimizer, g):
    weights = optimizer.target
    return optimizer.apply_gradient(g), weights
class Learner:
    def build(self):
        definition = make()
        self.optimizer = definition.create(p)
    def step(self, g):
        self.optimizer, loss = train(self.optimizer, g)
        return self.optimizer.target
def make(): return optim.Adam(0.1)
"""


def test_fields_of_one_name_hold_optimizers_of_two_libraries():
    result = rewrite(TORCH + FLAX, Options())
    assert result.messages == ()
    assert result.code.count(".params") == 2
    assert result.code.count(".target") == TORCH.count(".target")
    assert "return self.optimizer.state\n" in result.code


OURS = (
    "from flax import optim\nclass Learner:\n    def __init__(self, p):\n"
    "        self._optimizer = optim.Adam(1e-3).create(p)\n"
)


def test_parameters_and_classes_of_ones_own_are_no_optimizers():
    head = "from flax import optim\no = optim.Adam(0.1).create(p)\n"
    for code in (
        "def f(s, g): return s.target.apply_gradient(g), s.target.step\n",
        "class Own:\n    def apply_gradient(self, g): return self\n"
        "def f(x, g):\n    return x.apply_gradient(g)\n",
        "class A:\n    def f(self): return self.target, self.state.step\n",
    ):
        assert code in rewrite(head + code, Options()).code


def test_a_variable_with_an_optimizer_of_another_library_is_left_alone():
    use = "def h(a, g):\n    x = a.optimizer\n    return x.apply_gradient(g)\n"
    assert "return x.apply_gradient(g)" in rewrite(TORCH + use + OURS, Options()).code


AGENT = (
    "class Agent(tf_agent.TFAgent):\n    def train(self, gv):\n"
    "        self._optimizer.apply_gradients(gv)\n"
    "        return self._optimizer.target, self._optimizer.name.replace('x', 'y')\n"
    "    def saved(self): return self._optimizer.state_dict()\n"
)


@pytest.mark.parametrize(
    ("imported", "is_ours"),
    [
        ("from tf_agents.agents import tf_agent", False),
        ("import tensorflow as tf\nfrom . import losses", False),
        ("import torch\nimport jax", True),
        ("import torch\nfrom .learner import Learner", True),
        ("import learner\nimport tensorflow as tf", True),
        ("", True),
    ],
)
def test_what_a_file_imports_decides_what_its_fields_are(
    tmp_path: Path, imported: str, is_ours: bool
):
    (tmp_path / "learner.py").write_text(OURS, encoding="utf-8")
    (tmp_path / "losses.py").write_text("import torch\n", encoding="utf-8")
    (tmp_path / "agent.py").write_text(f"{imported}\n{AGENT}", encoding="utf-8")
    results = {r.path.name: r for r in driver.migrate([tmp_path], Options()).results}
    assert "TrainState.create" in results["learner.py"].code
    assert ("agent.py" in results) == is_ours
    assert not is_ours or "self._optimizer.params" in results["agent.py"].code
