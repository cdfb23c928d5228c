"""Reads import statements; `placement` adds them, the rule `dead_imports` removes them."""

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from migration_guide.codemod.reading.tree import children, dotted_name, walk

ImportNode = cst.Import | cst.ImportFrom

# Libraries with optimizers of their own. What imports one of the first, and nothing of JAX, has
# nothing to do with ours.
_WITHOUT_JAX = (
    "chainer", "fastai", "keras", "mxnet", "paddle", "pytorch_lightning", "sonnet", "tensorflow",
    "tf_agents", "torch",
)  # fmt: skip
_FOREIGN = (*_WITHOUT_JAX, "numpyro", "optax")


def is_foreign(name: str) -> bool:
    """True if an imported name belongs to another library with optimizers."""
    return name.split(".")[0] in _FOREIGN


def is_without_jax(name: str) -> bool:
    """True if an imported name belongs to a library that trains without JAX."""
    return name.split(".")[0] in _WITHOUT_JAX


def aliases(node: ImportNode) -> Iterator[tuple[str, str, bool]]:
    """Yields (dotted name, the name it binds, whether it is `a.b` of `import a.b`) of imports."""
    prefix = ""
    if isinstance(node, cst.ImportFrom):
        home = dotted_name(node.module)
        prefix = "." * len(node.relative) + (f"{home}." if home else "")
    for alias in () if isinstance(node.names, cst.ImportStar) else node.names:
        name = prefix + (dotted_name(alias.name) or "")
        yield name, bound(alias), not prefix and alias.asname is None and "." in name


def bound(alias: cst.ImportAlias) -> str:
    """Returns the name that an alias binds, `a.b` for `import a.b`."""
    if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
        return alias.asname.name.value
    return dotted_name(alias.name) or ""


def star(node: ImportNode) -> str:
    """The module of `from module import *`, or ""; with its dots if it is relative."""
    if not isinstance(node, cst.ImportFrom) or not isinstance(node.names, cst.ImportStar):
        return ""
    module = dotted_name(node.module) if node.module is not None else ""
    return "." * len(node.relative) + (module or "")


def mentions(node: ImportNode, name: str) -> bool:
    """True if a statement imports something at or below a dotted name."""
    if f"{star(node)}.".startswith(f"{name}."):
        return True
    return any(f"{imported}.".startswith(f"{name}.") for imported, _, _ in aliases(node))


def statements(module: cst.Module) -> list[ImportNode]:
    """Returns all import statements, at any depth."""
    return [n for n in walk(module) if isinstance(n, cst.Import | cst.ImportFrom)]


def references(module: cst.CSTNode) -> set[str]:
    """Returns the dotted names used outside of imports, in annotations that are strings as well."""
    names: set[str] = set()

    def strings(node: cst.CSTNode) -> None:
        for inner in walk(node):
            if isinstance(inner, cst.SimpleString):
                names.update(re.findall(r"[A-Za-z_]\w*(?:\.\w+)*", inner.raw_value))

    waiting: list[cst.CSTNode] = [module]
    while waiting:
        node = waiting.pop()
        kind = type(node)
        if kind is cst.Name:
            names.add(node.value)  # type: ignore[attr-defined]
            continue
        if kind is cst.Import or kind is cst.ImportFrom:
            continue
        if isinstance(node, cst.Attribute):
            text = dotted_name(node)
            if text is not None:
                names.add(text)
            else:
                waiting.append(node.value)
            continue
        if isinstance(node, cst.Arg):
            waiting.append(node.value)
            continue
        if isinstance(node, cst.Annotation):
            strings(node)
        elif isinstance(node, cst.Assign) and any(
            dotted_name(target.target) == "__all__" for target in node.targets
        ):
            strings(node.value)
        waiting += children(node)
    return names


def leading_blank(lines: Sequence[cst.EmptyLine]) -> int:
    """The number of blank lines at the beginning."""
    return next((i for i, line in enumerate(lines) if line.comment is not None), len(lines))


def made_by(line: cst.CSTNode) -> Iterator[ImportNode]:
    """The imports that a statement of the module makes, also those that it tries to make."""
    if isinstance(line, cst.Try):
        for inner in line.body.body:
            yield from made_by(inner)
    for node in line.body if isinstance(line, cst.SimpleStatementLine) else ():
        if isinstance(node, cst.Import | cst.ImportFrom):
            yield node
