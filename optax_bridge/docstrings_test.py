"""The examples in the docstrings run, and what a public function raises is said."""

import ast
import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest

import legacy_optim
import optax_bridge

# What an example may use without importing it.
NAMES = {"jax": jax, "jnp": jnp, "legacy_optim": legacy_optim, "nn": nn, "optax": optax}
NAMES |= {"optax_bridge": optax_bridge}
ROOT = Path(__file__).parent
FOLDERS = ("exact", "metadata", "optimizers", "correspondence", "training")
FILES = sorted(
    file
    for folder in (ROOT, *(ROOT / name for name in FOLDERS))
    for file in folder.glob("*.py")
    if not file.name.endswith("_test.py") and not file.name.startswith("__")
)


def examples() -> Iterator[Any]:
    for file in FILES:
        if ">>>" in file.read_text(encoding="utf-8"):
            name = ".".join(file.relative_to(ROOT.parent).with_suffix("").parts)
            module = importlib.import_module(name)
            finder = doctest.DocTestFinder(exclude_empty=True)
            for test in finder.find(module, extraglobs=NAMES):
                if test.examples:
                    yield pytest.param(test, id=test.name.removeprefix("optax_bridge."))


@pytest.mark.parametrize("example", list(examples()))
def test_an_example_gives_what_it_says(example: doctest.DocTest):
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    runner.run(example, out=said.append)
    assert not runner.summarize(verbose=False).failed, "".join(said)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_what_a_public_function_raises_is_said(file: Path):
    body = ast.parse(file.read_text(encoding="utf-8")).body
    classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name[0] != "_"]
    for node in [*body, *(method for kind in classes for method in kind.body)]:
        if isinstance(node, ast.FunctionDef) and node.name[0] != "_":
            raises = any(isinstance(part, ast.Raise) for part in ast.walk(node))
            assert not raises or "aises" in (ast.get_docstring(node) or ""), node.name
