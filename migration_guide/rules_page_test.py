"""What the rules' docstrings show as before and after is what the rules write."""

import re

import pytest

from migration_guide.codemod.registry import RULES
from migration_guide.codemod.results import Options
from migration_guide.codemod.rewrite import rewrite
from migration_guide.rules_page import COLUMN, RuleText, rule_text, rules_markdown, section

IMPORTS = """import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import optim, serialization
from flax.training import checkpoints
"""
JAX = "import jax\nimport jax.numpy as jnp\n"
SETUP = "definition = optim.Adam(1e-3)\noptimizer = definition.create(params)\n"
GROUPS = "optimizer = optim.MultiOptimizer((t, optim.Adam(1e-3))).create(params)\n"
# What stands around an example, where that is not a program with one optimizer: above it, below it.
AROUND = {
    "apply_gradient": (IMPORTS + GROUPS, ""),
    "bridge": (f"{IMPORTS}import clipping\n", "optimizer = optimizer.apply_gradient(grad)\n"),
    "clu_checkpoint": (f"{IMPORTS}from clu import checkpoint\n{SETUP}", ""),
    "dead_imports": ("", "State = struct.dataclass(State)\n"),
    "dynamic_scale": ("", ""),
    "gone_names": (f"{JAX}import numpy as np\n", "f = partial(g, 1)\n"),
    "hyper_params": (IMPORTS + GROUPS, ""),
    "comments": ("import flax.linen as nn\n" + IMPORTS + SETUP, ""),
    "reexports": ("", ""),
    "replicate": (IMPORTS + SETUP, "jax.pmap(train_step, axis_name='batch')(optimizer, b)\n"),
    "schedule": (f"{IMPORTS}def learning_rate_fn(step):\n    return 1 / (step + 1)\n\n", ""),
    "unclear": (
        f"{IMPORTS}import pickle\nfrom helpers import make_optimizer\n"
        "known_optimizer = optim.Adam(1).create(p)\n",
        "",
    ),
}


def _squeezed(code: str) -> str:
    """Code without what a formatter may change."""
    return re.sub(r"[\s'\"]+|,(?=\s*[)\]}])", "", code)


def test_a_rule_writes_what_its_docstring_shows(subtests: pytest.Subtests):
    for name in sorted(rule.name for rule in RULES):
        with subtests.test(str(name)):
            rule = rule_text(name)
            above, below = AROUND.get(name, (IMPORTS + SETUP, ""))
            written = _squeezed(rewrite(f"{above}{rule.before}\n{below}", Options()).code)
            position = 0
            for part in re.split(r"\.\.\.|\n", rule.after):  # `...` stands for the rest of a line
                found = written.find(_squeezed(part), position)
                assert found >= 0, f"{part.strip()!r} is not what follows in:\n{written[position:]}"
                position = found + len(_squeezed(part))


def test_the_page_has_both_sides_of_every_rule_and_the_reason():
    text = rules_markdown()
    assert re.findall("^## (.*)", text, re.M) == sorted(str(rule.name) for rule in RULES)
    for width, layout in ((COLUMN, "pair"), (COLUMN + 1, "pair stacked")):
        after = "x" * width
        assert section(RuleText("name", "Summary.", "before", after, "Why.")) == (
            f"## name\n\nSummary.\n\n:::::{{container}} {layout}\n"
            "::::{container} before\n```python\nbefore\n```\n::::\n"
            f"::::{{container}} after\n```python\n{after}\n```\n::::\n:::::\n\nWhy."
        )
