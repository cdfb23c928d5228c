"""Hyper-parameters that are read, changed and given back: as mappings, of one and of several."""

from pathlib import Path
from typing import Any

import pytest

from migration_guide.codemod import driver
from migration_guide.codemod.results import Message, Options, Rewritten
from migration_guide.codemod.rewrite import rewrite


def _by_hand(result: Rewritten) -> list[Message]:
    return [message for message in result.messages if message.by_hand]


ONE = "from flax import optim\no = optim.Adam(0.1).create(p)\n"
TWO = "from flax import optim\no = optim.MultiOptimizer((a, optim.Adam(0.1)), (b, optim.Adam(0.2)))"
SEVERAL = f"{TWO}.create(p)\n"
ALL = "[tx.hyper_params for tx in o.tx.inner]"

CASES = {
    "read": (
        ONE,
        "x = o.optimizer_def.hyper_params.beta1",
        'x = o.tx.hyper_params["b1"]',
    ),
    "read-in-an-f-string": (
        ONE,
        """f"{o.optimizer_def.hyper_params.beta1:g}", f'{o.optimizer_def.hyper_params.eps}'""",
        """f"{o.tx.hyper_params['b1']:g}", f'{o.tx.hyper_params["eps"]}'""",
    ),
    "replaced-and-read": (
        ONE,
        "x = o.optimizer_def.hyper_params.replace(beta1=2).learning_rate",
        'x = (o.tx.hyper_params | {"b1": 2})["learning_rate"]',
    ),
    "given-at-once": (
        ONE,
        "o.apply_gradient(g, hyper_params=o.optimizer_def.hyper_params.replace(learning_rate=1))",
        "o.apply_gradients(grads=g, learning_rate=1)",
    ),
    "given-by-name": (
        ONE,
        "hp = o.optimizer_def.hyper_params\no.apply_gradient(g, hyper_params=hp)",
        "hp = o.tx.hyper_params\no.apply_gradients(grads=g, **hp)",
    ),
    "two-replaced": (
        ONE,
        "hp = o.optimizer_def.hyper_params\n"
        "o.apply_gradient(g, hyper_params=hp.replace(beta1=2, eps=3))",
        'hp = o.tx.hyper_params\no.apply_gradients(grads=g, **(hp | {"b1": 2, "eps": 3}))',
    ),
    "updated-at-once": (
        ONE,
        "o.apply_gradient(g, hyper_params=o.optimizer_def.update_hyper_params(learning_rate=1))",
        "o.apply_gradients(grads=g, learning_rate=1)",
    ),
    "updated-and-read": (
        ONE,
        "hp = o.optimizer_def.update_hyper_params(learning_rate=r)\nx = hp.beta1\n"
        "o.apply_gradient(g, hyper_params=hp)",
        'hp = o.tx.hyper_params | {"learning_rate": r}\nx = hp["b1"]\n'
        "o.apply_gradients(grads=g, **hp)",
    ),
    "updated-and-read-at-once": (
        ONE,
        "x = o.optimizer_def.update_hyper_params(learning_rate=r).beta1",
        'x = (o.tx.hyper_params | {"learning_rate": r})["b1"]',
    ),
    "updated": (
        SEVERAL,
        "hp = o.optimizer_def.update_hyper_params(learning_rate=r)\n"
        "o.apply_gradient(g, hyper_params=hp)",
        'hp = {"learning_rate": r}\no.apply_gradients(grads=g, **hp)',
    ),
    "updated-and-taken-apart": (
        SEVERAL,
        "x, y = o.optimizer_def.update_hyper_params(beta1=2)",
        'x, y = [tx.hyper_params | {"b1": 2} for tx in o.tx.inner]',
    ),
    "of-groups-by-index": (
        SEVERAL,
        "x = o.optimizer_def.hyper_params[1].beta2",
        f'x = {ALL}[1]["b2"]',
    ),
    "of-groups-taken-apart": (
        SEVERAL,
        "x, y = o.optimizer_def.hyper_params\nx.replace(eps=1).replace(beta1=2)",
        f'x, y = {ALL}\n(x | {{"eps": 1}}) | {{"b1": 2}}',
    ),
    "of-groups-in-a-loop": (
        SEVERAL,
        "n = [h.replace(learning_rate=r) for h, r in zip(o.optimizer_def.hyper_params, rates)]\n"
        "o.apply_gradient(g, hyper_params=n)\nlog(n[0].learning_rate)",
        f'n = [h | {{"learning_rate": r}} for h, r in zip({ALL}, rates)]\n'
        'o.apply_gradients(grads=g, hyper_params=n)\nlog(n[0]["learning_rate"])',
    ),
}


def test_rewrites(subtests: pytest.Subtests):
    for case, (setup, before, after) in CASES.items():
        with subtests.test(case):
            result = rewrite(f"{setup}{before}\n", Options())
            assert result.refused == ""
            assert not _by_hand(result)
            assert result.code.split("\n", maxsplit=2)[2] == f"{after}\n"


def test_one_optimizers_settings_given_to_another_are_given_whole():
    more = (
        "q = optim.Adam(0.3).create(p)\n"
        "o.apply_gradient(g, hyper_params=q.optimizer_def.hyper_params.replace(learning_rate=1))\n"
    )
    new = rewrite(ONE + more, Options()).code
    assert 'o.apply_gradients(grads=g, **(q.tx.hyper_params | {"learning_rate": 1}))' in new


BOTH = """from flax import optim
def make(p):
    if groups:
        o = optim.MultiOptimizer((a, optim.Adam(0.1)), (b, optim.Adam(0.2)))
    else:
        o = optim.Adam(0.1)
    return o.create(p)
o = make(p)
"""


def test_a_variable_of_groups_or_of_one_shows_by_its_use(subtests: pytest.Subtests):
    for before, after in [
        ("h = o.optimizer_def.hyper_params\nx = h[0].replace(eps=r)", f"h = {ALL}\nx = h[0] | "),
        ("h = o.optimizer_def.hyper_params\nx, y = h", f"h = {ALL}\nx, y = h"),
        (
            "if groups:\n    h = o.optimizer_def.hyper_params[0]\n"
            "else:\n    h = o.optimizer_def.hyper_params\nh = h.replace(eps=r)",
            f'h = {ALL}[0]\nelse:\n    h = o.tx.hyper_params\nh = h | {{"eps": r}}',
        ),
    ]:
        with subtests.test(before):
            result = rewrite(f"{BOTH}{before}\n", Options())
            assert after in result.code and not _by_hand(result)


def test_one_optimizer_beside_groups_is_left_to_a_person(subtests: pytest.Subtests):
    loop = "h = [h.replace(eps=r) for h in o.optimizer_def.hyper_params]\n"
    loop += "o.apply_gradient(g, hyper_params=h)\n"
    one = "def one(p, g):\n    o = optim.Adam(0.1).create(p)\n    "
    for use in [
        "hp = o.optimizer_def.update_hyper_params(learning_rate=r)",
        "hp = o.optimizer_def.hyper_params",
        "o.apply_gradient(g, hyper_params=o.optimizer_def.hyper_params.replace(eps=1))",
    ]:
        with subtests.test(use):
            result = rewrite(f"{SEVERAL}{loop}{one}{use}\n", Options())
            assert f'[h | {{"eps": r}} for h in {ALL}]\no.apply_gradients(' in result.code
            assert {message.line for message in _by_hand(result)} == {7}


def test_a_definition_that_goes_into_groups_is_none_beside_them():
    made = "from flax import optim\nds = []\nds.append((a, optim.Adam(0.1)))\nd = optim.Adam(0.2)\n"
    use = "o = optim.MultiOptimizer(*ds, (b, d)).create(p)\nx, y = o.optimizer_def.hyper_params\n"
    assert f"x, y = {ALL}\n" in rewrite(made + use, Options()).code


OWN = """from flax import optim
class Own(optim.OptimizerDef):
    pass
o = Own(0.1).create(p)
"""


def test_definitions_of_ones_own_keep_their_names():
    use = "o.apply_gradient(g, beta1=0.8)\nx = o.optimizer_def.hyper_params.beta2\n"
    result = rewrite(OWN + use, Options())
    assert not _by_hand(result)
    lines = ["o.apply_gradients(grads=g, beta1=0.8)", 'x = o.tx.hyper_params["beta2"]']
    assert result.code.splitlines()[-2:] == lines
    mixed = rewrite(OWN + "q = optim.Adam(0.1).create(p)\n" + use, Options())
    assert ["a definition of your own" in m.text for m in _by_hand(mixed)] == [True] * 2


def test_what_another_file_reads_is_kept_by_what_this_one_makes(tmp_path: Path):
    made = "from flax import optim\ndef make(): return optim.Adam(0.1)\n"
    made += "def train(o: optim.Optimizer, g): return o.apply_gradient(g)\n"
    used = (
        "import flax, unittest, made\nclass Test(unittest.TestCase):\n    def test(self):\n"
        "        d = made.make()\n        self.assertEqual(d.hyper_params.learning_rate, 0.1)\n"
        "        self.assertIsInstance(d, flax.optim.Adam)\n"
    )
    (tmp_path / "made.py").write_text(made)
    (tmp_path / "used.py").write_text(used)
    by_file = {r.path.name: r for r in driver.migrate([tmp_path], Options()).changed_files}
    assert "return optax_bridge.adam(0.1)" in by_file["made.py"].code
    assert 'd.hyper_params["learning_rate"], 0.1' in by_file["used.py"].code
    assert [m.text[:31] for m in by_file["used.py"].messages] == ["which class a definition has ca"]


OVERRIDES = """
import jax.numpy as jnp
from flax import optim
def step(overrides):
    o = optim.Adam(0.1).create({"w": jnp.zeros(1)})
    return o.apply_gradient({"w": jnp.ones(1)}, **overrides).target["w"]
"""


def test_overrides_stay_and_a_name_that_is_another_now_is_an_error():
    done = rewrite(OVERRIDES, Options())
    assert not _by_hand(done) and any("b1 for beta1" in m.text for m in done.messages)
    names: dict[str, Any] = {}
    exec(done.code, names)
    assert float(names["step"]({"learning_rate": 0.5})[0]) == pytest.approx(-0.5, rel=1e-4)
    with pytest.raises(TypeError, match="beta1"):
        names["step"]({"beta1": 0.5})
    on_optax = rewrite(OVERRIDES, Options(recipe="optax"))
    assert "optax_bridge.adam(0.1)" in on_optax.code  # public Optax takes none at a step
    assert "**overrides" in on_optax.code
