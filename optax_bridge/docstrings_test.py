"""The docstring of a public function says what it raises."""

import ast
import importlib
import inspect
import textwrap

import pytest

MODULES = ("optax_bridge", "optax_bridge.checkpoints", "optax_bridge.correspondence")


@pytest.mark.parametrize("module", MODULES)
def test_what_a_public_function_raises_is_said(module, subtests):
    package = importlib.import_module(module)
    for name in package.__all__:
        value = inspect.unwrap(getattr(package, name))
        methods = [value]
        if inspect.isclass(value):
            methods = [m for n, m in vars(value).items() if inspect.isfunction(m) and n[0] != "_"]
        for method in filter(inspect.isfunction, methods):
            with subtests.test(f"{name}.{method.__name__}"):
                tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
                raises = any(isinstance(node, ast.Raise) for node in ast.walk(tree))
                assert not raises or "aises" in (inspect.getdoc(method) or "")
