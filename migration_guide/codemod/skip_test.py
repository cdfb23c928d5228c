"""`# optax-bridge: skip`: a statement with this comment stays as it is, without a message."""

import pytest

from migration_guide.codemod.results import Options
from migration_guide.codemod.rewrite import rewrite
from migration_guide.codemod.rewrite_test import settled

HEAD = "import jax\nfrom flax import optim\n"
SKIPPED = {
    "end": "d = optim.Adam(0.1)  # optax-bridge: skip\n",
    "above": "# optax-bridge: skip\nd = optim.Adam(0.1)\n",
    "with-a-reason": "d = optim.Adam(0.1)  # optax-bridge: skip, the paper's code\n",
    "first-line": "d = optim.Adam(  # optax-bridge: skip\n    0.1,\n)\n",
    "last-line": "d = optim.Adam(\n    0.1,\n)  # optax-bridge: skip\n",
    "would-be-by-hand": "f(optim)  # optax-bridge: skip\n",
    "header": "def f(o: optim.Optimizer):  # optax-bridge: skip\n    return 1\n",
    "above-a-header": "# optax-bridge: skip\ndef f(o: optim.Optimizer):\n    return 1\n",
    "one-line-block": "if x: d = optim.Adam(0.1)  # optax-bridge: skip\n",
    "other-rule": "jax.tree_map(f, optim)  # optax-bridge: skip\n",
}


def test_a_marked_statement_stays_and_so_does_what_it_needs(subtests: pytest.Subtests):
    for case in SKIPPED:
        with subtests.test(case):
            code = HEAD + SKIPPED[case]
            result = rewrite(code, Options())
            assert (result.code, result.messages, result.refused) == (code, (), "")


def test_its_neighbours_do_not(subtests: pytest.Subtests):
    for case in SKIPPED:
        with subtests.test(case):
            code = f"{HEAD}{SKIPPED[case]}e = optim.GradientDescent(lr)\n"
            result = settled(code)
            assert SKIPPED[case] in result.code and "from flax import optim" in result.code
            assert "e = optax.sgd(" in result.code


def test_only_the_header_of_a_function_is_one_statement():
    result = rewrite(
        f"{HEAD}def f():  # optax-bridge: skip\n    return optim.Adam(lr)\n", Options()
    )
    assert "return optax.adam(" in result.code


def test_a_marked_import_stays():
    code = "import jax\nfrom flax import optim  # optax-bridge: skip\nd = optim.Adam(lr)\n"
    result = rewrite(code, Options())
    assert "from flax import optim  # optax-bridge: skip\n" in result.code
    assert "d = optax.adam(" in result.code
