"""Reading and removing import statements; `placement` adds them."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import libcst as cst

from migration_guide.codemod.reading.marks import is_skipped
from migration_guide.codemod.reading.tree import children, dotted_name, transform, walk

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
    """Yields (dotted name, what it is bound to, whether it is `a.b` of `import a.b`) of imports."""
    if isinstance(node.names, cst.ImportStar):
        return
    prefix = ""
    if isinstance(node, cst.ImportFrom):
        if node.relative or node.module is None:
            return
        prefix = f"{dotted_name(node.module)}."
    for alias in node.names:
        name = prefix + (dotted_name(alias.name) or "")
        yield name, bound(alias), not prefix and alias.asname is None and "." in name


def origins(node: ImportNode) -> Iterator[tuple[str, ...]]:
    """Yields the parts of the names that a statement imports, "" first where it is relative."""
    home = ("",) if isinstance(node, cst.ImportFrom) and node.relative else ()
    if isinstance(node, cst.ImportFrom) and node.module is not None:
        home += tuple((dotted_name(node.module) or "").split("."))
    if isinstance(node.names, cst.ImportStar):
        yield home
        return
    for alias in node.names:
        yield (*home, *(dotted_name(alias.name) or "").split("."))


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


def without(
    module: cst.Module, is_dead: Callable[[str, str, bool], bool], used: set[str]
) -> cst.Module:
    """The module without some aliases and the statements that become empty.

    Comments above those stay, and so do imports within `try:`, and what a comment leaves alone.

    Args:
      module: the module.
      is_dead: from `aliases`' triple to whether an alias goes.
      used: what the module refers to.
    """
    needed = {reference.split(".")[0] for reference in used} - _packages_at_the_top(module)

    def leave(original: Any, updated: Any) -> Any:
        if isinstance(updated, cst.Import | cst.ImportFrom):
            return _without(updated, is_dead, needed)
        if isinstance(updated, cst.SimpleStatementLine) and updated is not original:
            remaining = [small for small in updated.body if not _is_gone(small)]
            if not remaining or len(remaining) == len(updated.body):
                return updated
            remaining[-1] = remaining[-1].with_changes(semicolon=updated.body[-1].semicolon)
            return updated.with_changes(body=remaining)
        if isinstance(updated, cst.IndentedBlock | cst.Module) and updated is not original:
            return updated.with_changes(body=_without_gone(updated.body))
        return updated

    def into(node: cst.CSTNode) -> bool:
        if isinstance(node, cst.SimpleStatementLine) and is_skipped(node):
            return False
        return not isinstance(node, cst.Try | cst.TryStar | cst.BaseExpression)

    return transform(module, leave, into)


def _without(
    node: ImportNode, is_dead: Callable[[str, str, bool], bool], needed: set[str]
) -> cst.BaseSmallStatement:
    if isinstance(node.names, cst.ImportStar):
        gone = is_dead(star(node), "*", False)
        return cst.Expr(cst.Name(_GONE), semicolon=node.semicolon) if gone else node
    named = list(aliases(node))
    if len(named) != len(node.names):
        return node  # a relative import
    remaining = []
    for alias, triple in zip(node.names, named, strict=True):
        if not is_dead(*triple):
            remaining.append(alias)
            continue
        root = triple[1].split(".")[0]
        if triple[2] and root in needed:
            # `import flax.optim` bound flax
            remaining.append(alias.with_changes(name=cst.Name(root)))
    if len(remaining) == len(node.names) and all(
        a is b for a, b in zip(remaining, node.names, strict=True)
    ):
        return node
    if not remaining:
        return cst.Expr(cst.Name(_GONE), semicolon=node.semicolon)
    remaining[-1] = remaining[-1].with_changes(comma=node.names[-1].comma)
    return node.with_changes(names=remaining)


def _packages_at_the_top(module: cst.Module) -> set[str]:
    """Returns the packages that `import jax` and the like bind above all other statements."""
    packages: set[str] = set()
    for line in module.body:
        for node in line.body if isinstance(line, cst.SimpleStatementLine) else (line,):
            if isinstance(node, cst.Import):
                names = {bound(alias) for alias in node.names if alias.asname is None}
                packages |= {name for name in names if "." not in name}
            elif not isinstance(getattr(node, "value", node), cst.ImportFrom | cst.SimpleString):
                return packages
    return packages


# Stands for a removed import until the statement's comments have found a new place.
_GONE = "optax_bridge_removed_import"


def _is_gone(node: cst.CSTNode) -> bool:
    return (
        isinstance(node, cst.Expr)
        and isinstance(node.value, cst.Name)
        and node.value.value == _GONE
    )


def _without_gone(body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """The statements without the removed ones, whose comments and blank lines go to the next."""
    remaining: list[cst.BaseStatement] = []
    pending: list[cst.EmptyLine] = []
    for statement in body:
        lines = [*getattr(statement, "leading_lines", ())]
        if pending:
            has_comment = any(line.comment is not None for line in pending)
            lines = [*pending, *lines] if has_comment else _longer(pending, lines)
            pending = []
        if isinstance(statement, cst.SimpleStatementLine) and _is_gone(statement.body[0]):
            pending = lines
            continue
        if lines != [*getattr(statement, "leading_lines", ())]:
            statement = statement.with_changes(leading_lines=lines)
        remaining.append(statement)
    return remaining


def leading_blank(lines: Sequence[cst.EmptyLine]) -> int:
    """The number of blank lines at the beginning."""
    return next((i for i, line in enumerate(lines) if line.comment is not None), len(lines))


def _longer(first: list[cst.EmptyLine], second: list[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """The second lines, with as many blank ones at the beginning as the first has at least."""
    return [*first[leading_blank(second) :], *second]


def made_by(line: cst.CSTNode) -> Iterator[ImportNode]:
    """The imports that a statement of the module makes, also those that it tries to make."""
    if isinstance(line, cst.Try):
        for inner in line.body.body:
            yield from made_by(inner)
    for node in line.body if isinstance(line, cst.SimpleStatementLine) else ():
        if isinstance(node, cst.Import | cst.ImportFrom):
            yield node
