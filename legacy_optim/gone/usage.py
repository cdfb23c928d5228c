# pyright: strict
"""Names that are gone in a file, found without running it and faster than by a rewriter."""

import ast
import builtins

from legacy_optim import gone

_PACKAGES = ("chex", "flax", "jax", "numpy", "optax", "orbax")


def uses_gone_names(source: str) -> list[tuple[int, gone.Gone]]:
    """The lines of a file that use names that are gone, and the names' entries."""
    if not any(package in source for package in _PACKAGES):
        return []
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last where brackets nest
        return []
    bound: dict[str, str] = {}
    stars: list[str] = []
    uses: dict[tuple[int, gone.Gone], None] = {}
    nodes = list(ast.walk(tree))
    for node in nodes:
        for line, entry in _bind_import(node, bound):
            uses[line, entry] = None
        if isinstance(node, ast.ImportFrom) and node.module and node.names[0].name == "*":
            stars.append(node.module)
    for node in nodes:  # a module in a variable: `xnp = jax.numpy`
        name = _dotted_name(node.value, bound) if isinstance(node, ast.Assign) else ""
        if isinstance(node, ast.Assign) and name in gone.owners():
            bound |= {t.id: name for t in node.targets if isinstance(t, ast.Name)}
    inner = {id(n.value) for n in nodes if isinstance(n, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.Attribute | ast.Name) and id(node) not in inner:
            names = [_dotted_name(node, bound)]
            if isinstance(node, ast.Name) and node.id not in bound:
                names += [f"{star}.{node.id}" for star in stars if not hasattr(builtins, node.id)]
            for entry in filter(None, map(gone.find, names)):
                uses[node.lineno, entry] = None
        elif isinstance(node, ast.Call):
            for argument in node.keywords:
                entry = gone.find_keyword(_dotted_name(node.func, bound), argument.arg or "")
                if entry is not None:
                    uses[node.lineno, entry] = None
    return sorted(uses)


def _bind_import(node: ast.AST, bound: dict[str, str]) -> list[tuple[int, gone.Gone]]:
    """Notes what an import binds; returns what of it is gone."""
    names: list[str] = []
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            bound[alias.asname or top] = alias.name if alias.asname else top
            names.append(alias.name)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for alias in node.names:
            bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            names.append(f"{node.module}.{alias.name}".removesuffix(".*"))
    else:
        return []
    entries = [gone.find_module(name) or gone.find(name) for name in names]
    return [(node.lineno, entry) for entry in entries if entry is not None]


def _dotted_name(node: ast.expr, bound: dict[str, str]) -> str:
    """Returns the imported name of a chain of names, or ""."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in bound:
        return ""
    return ".".join([bound[node.id], *reversed(parts)])
