# pyright: strict
"""Whether a file uses names that are gone: without running it, and faster than by a rewriter."""

import ast
import builtins

from legacy_optim import gone

PACKAGES = ("chex", "flax", "jax", "numpy", "optax", "orbax")


def uses_gone_names(source: str) -> bool:
    """True if a file uses a name, or a keyword argument, that is gone."""
    if not any(package in source for package in PACKAGES):
        return False
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last where brackets nest
        return False
    bound: dict[str, str] = {}
    stars: list[str] = []
    for node in nodes:
        if _bind_import(node, bound):
            return True
        if isinstance(node, ast.ImportFrom) and node.module and node.names[0].name == "*":
            stars.append(node.module)
    for node in nodes:  # a module in a variable: `xnp = jax.numpy`
        name = _dotted_name(node.value, bound) if isinstance(node, ast.Assign) else ""
        if isinstance(node, ast.Assign) and name in gone.owners():
            bound |= {t.id: name for t in node.targets if isinstance(t, ast.Name)}
    return any(_is_gone(node, bound, stars) for node in nodes)


def _is_gone(node: ast.AST, bound: dict[str, str], stars: list[str]) -> bool:
    """True if a name, or a keyword argument of a call, is gone."""
    if isinstance(node, ast.Call):
        function = _dotted_name(node.func, bound)
        return any(gone.find_keyword(function, k.arg or "") for k in node.keywords)
    if isinstance(node, ast.Name) and node.id not in bound and not hasattr(builtins, node.id):
        return any(gone.find(f"{star}.{node.id}") for star in stars)
    is_name = isinstance(node, ast.Attribute | ast.Name)
    return is_name and gone.find(_dotted_name(node, bound)) is not None


def _bind_import(node: ast.AST, bound: dict[str, str]) -> bool:
    """Notes the names that an import binds; True if one of them, or its module, is gone."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            bound[alias.asname or top] = alias.name if alias.asname else top
        return any(gone.find_module(alias.name) for alias in node.names)
    if not isinstance(node, ast.ImportFrom) or not node.module or node.level:
        return False
    names = [f"{node.module}.{alias.name}" for alias in node.names]
    bound |= {alias.asname or alias.name: n for alias, n in zip(node.names, names, strict=True)}
    return gone.find_module(node.module) is not None or any(map(gone.find, names))


def _dotted_name(node: ast.expr, bound: dict[str, str]) -> str:
    """Returns the imported name of a chain of names, or ""."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in bound:
        return ""
    return ".".join([bound[node.id], *reversed(parts)])
