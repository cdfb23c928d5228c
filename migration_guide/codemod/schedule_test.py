"""A rate that a program computes from the step becomes a schedule, where it is sure to be one."""

import pytest

from migration_guide.codemod.results import Options
from migration_guide.codemod.rewrite import rewrite

DEFINED = ("def fn(step): return 0.1 / (1 + step)\n", "d = optim.Momentum(beta=0.5)\n")
SCHEDULED = """\
import jax
from flax import optim
def fn(step): return 0.1 / (1 + step)
d = optim.Momentum(beta=0.5)
def f(opt, g):
    lr = fn(opt.state.step)
    return opt.apply_gradient(g, learning_rate=lr), lr
f(d.create(p), g)
"""


def test_a_rate_that_nothing_reads_any_longer_goes(subtests: pytest.Subtests):
    for old, new, stays in [
        (", lr\n", "\n", False),
        (", lr\n", "  # with lr\n", False),
        (", lr\n", ", (lambda: lr)\n", True),
        ("lr", "learning_rate", True),
        (", lr\n", ", h(lr=1)\n", False),
    ]:
        with subtests.test(old):
            code = rewrite(SCHEDULED.replace(old, new), Options()).code
            assert "momentum(learning_rate=fn" in code
            assert ("= fn(opt.step)" in code) == stays


def test_a_line_that_says_or_does_more_stays(subtests: pytest.Subtests):
    for line in [
        "print(1)\n    lr = fn(opt.state.step); n = 1",
        "lr = fn(opt.state.step)  # falls",
        "# falls\n    lr = fn(opt.state.step)",
        "lr = n = fn(opt.state.step)",
    ]:
        with subtests.test(line):
            code = SCHEDULED.replace(", lr\n", "\n").replace("lr = fn(opt.state.step)", line)
            assert line.replace(".state", "") in rewrite(code, Options()).code


def test_a_rate_stays_an_argument_where_it_may_differ(subtests: pytest.Subtests):
    for old, new in [
        ("opt.state.step)", "opt.state.step + 1)"),
        ("fn(opt.state.step)", "fn(other.state.step)"),
        ("beta=0.5", "0.2, beta=0.5"),
        ("    return opt", "    lr = lr * 2\n    return opt"),
        ("    lr =", "    opt = g(opt)\n    lr ="),
        ("def fn(step)", "fn = None\ndef fn(step)"),
        (DEFINED[0] + DEFINED[1], DEFINED[1] + DEFINED[0]),
        ("d = optim", "e = optim.Adam()\nd = optim"),
        ("f(d.create", "d.create(p).apply_gradient(g)\nf(d.create"),
        ("f(d.create", "getattr(optim, n)\nf(d.create"),
    ]:
        with subtests.test(old):
            code = rewrite(SCHEDULED.replace(old, new, 1), Options()).code
            assert "learning_rate=fn" not in code
            assert "learning_rate=lr), lr" in code
