"""The examples in the docstrings of all packages run, and give what they say."""

import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("equivalence_tests", "legacy_optim", "migration_guide", "optax_bridge")
_EXAMPLE = re.compile(r"^ *>>> ", re.MULTILINE)
# What an example may use without importing it.
MODULES = {"jnp": "jax.numpy", "nn": "flax.linen", "np": "numpy"}
MODULES |= {name: name for name in ("jax", "legacy_optim", "optax", "optax_bridge")}
NAMES = {name: importlib.import_module(module) for name, module in MODULES.items()}


def examples() -> Iterator[Any]:
    """Read as text first: a module without an example is not imported."""
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            if not file.name.endswith("_test.py") and _EXAMPLE.search(file.read_text("utf-8")):
                parts = file.relative_to(ROOT).with_suffix("").parts
                name = ".".join(parts).removesuffix(".__init__")
                finder = doctest.DocTestFinder(exclude_empty=True)
                for test in finder.find(importlib.import_module(name), extraglobs=NAMES):
                    if test.examples:
                        yield pytest.param(test, id=test.name)


@pytest.mark.parametrize("example", list(examples()))
def test_an_example_gives_what_it_says(example: doctest.DocTest):
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    runner.run(example, out=said.append)
    assert not runner.summarize(verbose=False).failed, "".join(said)
