"""What is pickled is left to a person where it holds an optimizer, however deep."""

import pytest

from migration_guide.codemod.reading.marks import PREFIX
from migration_guide.codemod.results import Options
from migration_guide.codemod.rewrite import rewrite
from migration_guide.codemod.rewrite_test import settled

HEAD = "import pickle\nfrom flax import optim\nopt = optim.Adam(0.1).create(p)\n"
WRITTEN = f"{PREFIX}a TrainState holds the functions of its transformation, and pickle refuses"
READ = f"{PREFIX}a pickle of flax.optim objects cannot be loaded without"
AGENT = (
    "class Agent:\n"
    "    def __init__(self):\n"
    "        self.opt = optim.Adam(0.1).create(p)\n"
    "    def save(self):\n"
    "        {}\n"
)
CASES = {
    "bare": ("pickle.dump(opt, f)", WRITTEN),
    "its-state": ("d = pickle.load(f)\nopt.replace(state=d['s'])", READ),
    "in-a-dict": ("pickle.dumps({'opt': opt, 'epoch': 1})", WRITTEN),
    "definition": ("pickle.dump(optim.Adam(0.1), f)", WRITTEN),
    "cloudpickle": ("import cloudpickle\ncloudpickle.dump(opt, f)", WRITTEN),
    "joblib": ("import joblib\njoblib.dump(opt, 'x')", WRITTEN),
    "by-name": ("from pickle import dump\ndump(opt, f)", WRITTEN),
    "numpy": ("import numpy as np\nnp.save('x', opt)", WRITTEN),
    "pickler": ("P = pickle.Pickler(f)\nP.dump(opt)", WRITTEN),
    "by-a-function": ("def save(o): pickle.dump(o, f)\nsave(opt)", WRITTEN),
    "self": (AGENT.format("pickle.dump(self, f)"), WRITTEN),
    "self-in-a-dict": (AGENT.format("pickle.dump({'agent': (self, 1)}, f)"), WRITTEN),
    "fields-of-self": (AGENT.format("pickle.dump(self.__dict__, f)"), WRITTEN),
    "fields-by-vars": (AGENT.format("pickle.dump({**vars(self)}, f)"), WRITTEN),
    "instance": (AGENT.format("pass") + "agent = Agent()\npickle.dump(agent, f)", WRITTEN),
    "read": ("opt = pickle.load(f)", READ),
    "read-of-a-dict": ("opt = pickle.load(f)['opt']\nopt.target", READ),
    "item-of-what-was-read": ("d = pickle.load(f)\nopt = d['opt']", READ),
    "items-of-what-was-read": ("d = pickle.load(f)\nopt, n = d['opt'], d['n']", READ),
    "used": ("a, b = pickle.loads(d)\na.target", READ),
    "used-deep": ("n = pickle.load(f)['opt'].state.step", READ),
    "used-at-once": ("p = pickle.load(f).target", READ),
}


def test_an_optimizer_in_a_pickle_gets_a_comment(subtests: pytest.Subtests):
    for code, expected in CASES.values():
        with subtests.test(code):
            result = settled(f"{HEAD}{code}\n")
            assert result.code.count(expected) == 1


QUIET = {
    "parameters": "pickle.dump(opt.target, f)",
    "state-dict": "pickle.dump(opt.state_dict(), f)",
    "data": "data = pickle.load(f)\ndata['x']",
    "another-dump": "json.dump(opt, f)",
    "within-a-class": AGENT.format("data = 1; pickle.dump(data, f)"),
    "a-part": "x = pickle.load(f).data['x']",
    "given-on": "use(pickle.load(f))",
    "another-field": AGENT.format("pickle.dump((self.epoch, 1), f)"),
    "another-state": "x = pickle.load(f).state['x']",
    "holds-itself": (
        "class A:\n    def __init__(self):\n        self.me = (self, 1)\n"
        "    def save(self): pickle.dump(self, f)\n"
    ),
    "hold-each-other": (
        "class A:\n    def __init__(self): self.b = B()\n"
        "class B:\n    def __init__(self): self.a = A()\n"
        "pickle.dump(A(), f)\n"
    ),
}


def test_what_holds_none_gets_no_comment(subtests: pytest.Subtests):
    for code in QUIET.values():
        with subtests.test(code):
            result = rewrite(f"{HEAD}{code}\n", Options())
            assert PREFIX not in result.code
            assert result.refused == ""
            assert [m for m in result.messages if m.by_hand] == []


NAMES = f"{PREFIX}names of flax.optim's state dict"
LOOKUPS = {
    "file": "d = serialization.msgpack_restore(b)\nn = d['a']['state']['step']",
    "at-once": "m = serialization.msgpack_restore(b)['state']['param_states']",
    "state-dict": "d = opt.state_dict()\nd['target']['w'] = 1",
    "of-a-method": "d = self.state_dict()\nd['state']['step'] = 1",
    "function": "d = serialization.to_state_dict(opt)\np = d['target']",
    "in-other-hands": "d = jax.device_get(opt.state_dict())\np = d['target']",
    "get": "d = serialization.msgpack_restore(b)\nn = d.get('state').get('step')",
    "pop": "d = serialization.msgpack_restore(b)\nn = d['opt'].pop('target')",
    "in": "d = serialization.msgpack_restore(b)\nx = 'target' in d",
    "without-a-template": "p = checkpoints.restore_checkpoint(d, None)['optimizer']['target']",
    "of-a-function": "def f(): return checkpoints.restore_checkpoint(d)\np = f()['o']['target']",
}


def test_old_names_asked_of_a_state_dict_get_a_comment(subtests: pytest.Subtests):
    for code in LOOKUPS.values():
        with subtests.test(code):
            imports = "from flax import serialization\nfrom flax.training import checkpoints\n"
            result = settled(f"{imports}{HEAD}{code}\n")
            assert result.code.count(NAMES) == 1


def test_other_names_and_dicts_get_none(subtests: pytest.Subtests):
    for code in [
        "d = serialization.msgpack_restore(b)\nd['step'], d['state']['x'], d.get('state')",
        "d = e()\nd['target'], d.pop('target'), 'target' in d",
        "o = serialization.from_state_dict(opt, {'target': d, 'state': d['state']})",
        "p = flax.training.checkpoints.restore_checkpoint(d, {'target': 1})['target']",
    ]:
        with subtests.test(code):
            assert (
                PREFIX
                not in rewrite(f"from flax import serialization\n{HEAD}{code}\n", Options()).code
            )


ORDERS = {
    "structure": "s = jax.tree_util.tree_structure({'o': opt, 'n': 1})",
    "saved": "np.savez(f, *jax.tree_leaves(opt))",
    "flattened": "ls, s = jax.tree.flatten((opt, 1))\npickle.dump(ls, f)",
}


def test_leaves_in_their_order_get_a_comment(subtests: pytest.Subtests):
    for code in ORDERS.values():
        with subtests.test(code):
            result = rewrite(f"import jax\nimport numpy as np\n{HEAD}{code}\n", Options())
            assert result.code.count(f"{PREFIX}this depends on the order of leaves") == 1


def test_leaves_that_stay_in_memory_get_none():
    code = "ls, s = jax.tree_util.tree_flatten(opt)\njax.tree_structure(opt.target)\n"
    assert PREFIX not in rewrite(f"import jax\n{HEAD}{code}", Options()).code


def test_what_may_be_a_dict_by_now_is_said():
    result = rewrite(f"{HEAD}x = read(f).unfreeze()\n", Options())
    assert "read(f).unfreeze()" in result.code
    assert any("flax.core.unfreeze(it)" in message.text for message in result.messages)


def test_an_archive_of_arrays_is_spoken_of_where_an_optimizer_is_near():
    result = rewrite(f"import numpy as np\n{HEAD}np.savez('x', **arrays)\n", Options())
    assert PREFIX not in result.code
    assert any("unflatten_dict" in message.text for message in result.messages)
    code = "import numpy as np\nfrom flax import optim\nnp.savez('x', **arrays)\n"
    assert not rewrite(code, Options()).messages
