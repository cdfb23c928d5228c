"""Reading, adding and removing import statements."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import libcst as cst

from migration_guide.codemod.tree import children, dotted, transformed, walk

ImportNode = cst.Import | cst.ImportFrom


def aliases(node: ImportNode) -> Iterator[tuple[str, str, bool]]:
    """Yields (dotted name, what it is bound to, whether it is `a.b` of `import a.b`) of imports."""
    if isinstance(node.names, cst.ImportStar):
        return
    prefix = ""
    if isinstance(node, cst.ImportFrom):
        if node.relative or node.module is None:
            return
        prefix = f"{dotted(node.module)}."
    for alias in node.names:
        name = prefix + (dotted(alias.name) or "")
        yield name, bound(alias), not prefix and alias.asname is None and "." in name


def bound(alias: cst.ImportAlias) -> str:
    """What an alias binds, `a.b` for `import a.b`."""
    if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
        return alias.asname.name.value
    return dotted(alias.name) or ""


def star(node: ImportNode) -> str:
    """The module of `from module import *`, or ""; with its dots if it is relative."""
    if not isinstance(node, cst.ImportFrom) or not isinstance(node.names, cst.ImportStar):
        return ""
    module = dotted(node.module) if node.module is not None else ""
    return "." * len(node.relative) + (module or "")


def mentions(node: ImportNode, name: str) -> bool:
    """Whether a statement imports something at or below a dotted name."""
    if f"{star(node)}.".startswith(f"{name}."):
        return True
    return any(f"{imported}.".startswith(f"{name}.") for imported, _, _ in aliases(node))


def statements(module: cst.Module) -> list[ImportNode]:
    """All import statements, wherever they are."""
    return [n for n in walk(module) if isinstance(n, cst.Import | cst.ImportFrom)]


def references(module: cst.CSTNode) -> set[str]:
    """All dotted names that a module refers to outside of imports, annotations in strings, too."""
    found: set[str] = set()

    def strings(node: cst.CSTNode) -> None:
        for inner in walk(node):
            if isinstance(inner, cst.SimpleString):
                found.update(re.findall(r"[A-Za-z_]\w*(?:\.\w+)*", inner.raw_value))

    waiting: list[cst.CSTNode] = [module]
    while waiting:
        node = waiting.pop()
        kind = type(node)
        if kind is cst.Name:
            found.add(node.value)  # type: ignore[attr-defined]
            continue
        if kind is cst.Import or kind is cst.ImportFrom:
            continue
        if isinstance(node, cst.Attribute):
            text = dotted(node)
            if text is not None:
                found.add(text)
            else:
                waiting.append(node.value)
            continue
        if isinstance(node, cst.Arg):
            waiting.append(node.value)
            continue
        if isinstance(node, cst.Annotation):
            strings(node)
        elif isinstance(node, cst.Assign) and any(
            dotted(target.target) == "__all__" for target in node.targets
        ):
            strings(node.value)
        waiting += children(node)
    return found


def without(
    module: cst.Module, is_dead: Callable[[str, str, bool], bool], used: set[str]
) -> cst.Module:
    """The module without some aliases and the statements that become empty.

    Comments above those stay, and so do imports within `try:`.

    Args:
      module: the module.
      is_dead: from `aliases`' triple to whether an alias goes.
      used: what the module refers to.
    """

    def leave(original: Any, updated: Any) -> Any:
        if isinstance(updated, cst.Import | cst.ImportFrom):
            return _without(updated, is_dead, used)
        if isinstance(updated, cst.SimpleStatementLine) and updated is not original:
            left = [small for small in updated.body if not _is_gone(small)]
            if not left or len(left) == len(updated.body):
                return updated
            left[-1] = left[-1].with_changes(semicolon=updated.body[-1].semicolon)
            return updated.with_changes(body=left)
        if isinstance(updated, cst.IndentedBlock | cst.Module) and updated is not original:
            return updated.with_changes(body=_without_gone(updated.body))
        return updated

    def into(node: cst.CSTNode) -> bool:
        return not isinstance(node, cst.Try | cst.TryStar | cst.BaseExpression)

    return transformed(module, leave, into)


def _without(
    node: ImportNode, is_dead: Callable[[str, str, bool], bool], used: set[str]
) -> cst.BaseSmallStatement:
    if isinstance(node.names, cst.ImportStar):
        gone = is_dead(star(node), "*", False)
        return cst.Expr(cst.Name(_GONE), semicolon=node.semicolon) if gone else node
    named = list(aliases(node))
    if len(named) != len(node.names):
        return node  # a relative import
    kept = []
    for alias, triple in zip(node.names, named, strict=True):
        if not is_dead(*triple):
            kept.append(alias)
            continue
        root = triple[1].split(".")[0]
        if triple[2] and any(ref.split(".")[0] == root for ref in used):
            kept.append(alias.with_changes(name=cst.Name(root)))  # `import flax.optim` bound flax
    if len(kept) == len(node.names) and all(a is b for a, b in zip(kept, node.names, strict=True)):
        return node
    if not kept:
        return cst.Expr(cst.Name(_GONE), semicolon=node.semicolon)
    kept[-1] = kept[-1].with_changes(comma=node.names[-1].comma)
    return node.with_changes(names=kept)


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
    left: list[cst.BaseStatement] = []
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
        left.append(statement)
    return left


def _blank(lines: Sequence[cst.EmptyLine]) -> int:
    """The number of blank lines at the beginning."""
    return next((i for i, line in enumerate(lines) if line.comment is not None), len(lines))


def _longer(first: list[cst.EmptyLine], second: list[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """The second lines, with as many blank ones at the beginning as the first has at least."""
    return [*first[_blank(second) :], *second]


def with_imports(module: cst.Module, needed: Iterable[str], old: int | None = None) -> cst.Module:
    """The module with what is needed imported at its top, where it is not yet.

    Args:
      module: the module.
      needed: dotted names of modules.
      old: index of the statement that imported what is being replaced; if nothing speaks against
        it, imports do not move above it.
    """
    roots = {name.split(".")[0] for name in needed}
    have, used = set(), set()
    for line in module.body:
        for node in made_by(line):
            for name, as_name, is_dotted in aliases(node):
                have.add(as_name.split(".")[0] if is_dotted else as_name if name == as_name else "")
                have.add(f"{name} as {as_name}")
        used |= {name for name in roots - have if name in _names(line, run=True)}
        # An import below a use is too late for it.
        have -= used | {f"{name} as {name}" for name in used}
    missing = [n for n in sorted(needed) if n not in have and f"{n} as {n}" not in have]
    body = list(module.body)
    # Python's own modules may stand anywhere. All others import JAX: they stay together.
    roots = {name.split(".")[0] for name in missing}
    python = roots & sys.stdlib_module_names
    block = _block_of_ours(module, roots - python) if roots - python else None
    if block is not None:
        within: Any = block.body
        inner = with_imports(cst.Module(within), [n for n in missing if n not in python])
        module = cst.ensure_type(
            module.deep_replace(block, block.with_changes(body=inner.body)), cst.Module
        )
        body, missing = list(module.body), [name for name in missing if name in python]
    places = {root: _place(body, roots - python, old) for root in roots - python}
    places |= {root: _place(body, {root}, old) for root in python}
    for name in reversed(missing):
        line = cst.parse_statement(f"import {name}", config=module.config_for_parsing)
        place = places[name.split(".")[0]]
        body.insert(place, line)
        places = {root: at + (at > place) for root, at in places.items()}
    return module.with_changes(body=body)


def _block_of_ours(module: cst.Module, roots: set[str]) -> cst.IndentedBlock | None:
    """The block that alone uses the names, and imports JAX where the module's top does not.

    Only where something sets JAX up: what is imported at the top might come before it.
    """
    users = [line for line in module.body if roots & _names(line)]
    if len(users) != 1 or any(map(_is_import_of_ours, module.body)) or not _sets(module):
        return None
    for block in walk(users[0]):
        if isinstance(block, cst.IndentedBlock) and any(map(_is_import_of_ours, block.body)):
            rest = users[0].deep_replace(block, cst.IndentedBlock([]))
            return None if isinstance(rest, cst.CSTNode) and roots & _names(rest) else block
    return None


def comes_too_early(old: cst.Module, new: cst.Module) -> bool:
    """Whether the top of a module imports JAX now, and did not, and something sets JAX up later."""
    first = next((i for i, line in enumerate(new.body) if _is_import_of_ours(line)), None)
    if first is None or any(map(_is_import_of_ours, old.body)):
        return False
    return any(map(_sets, new.body[first:]))


def _is_import_of_ours(line: cst.CSTNode) -> bool:
    return isinstance(line, cst.SimpleStatementLine) and _imports_ours(line)


def below_imports(module: cst.Module, source: str, name: str) -> cst.Module:
    """The module with a function of a name, below its imports and above its first use."""
    (function,) = cst.parse_module(f"{source}\n").body
    assert isinstance(function, cst.FunctionDef)
    statements = [function.with_changes(leading_lines=[cst.EmptyLine(indent=False)] * 2)]
    body: list[Any] = list(module.body)
    first = next((i for i, line in enumerate(body) if name in _names(line, run=True)), len(body))
    place = 0
    for index, line in enumerate(body[:first]):
        if not isinstance(line, cst.SimpleStatementLine):
            break
        if isinstance(line.body[0], cst.Import | cst.ImportFrom):
            place = index + 1
    body[place:place] = statements
    if place + len(statements) < len(body):
        after = body[place + len(statements)]
        blank = [*getattr(after, "leading_lines", ())]
        missing = 2 - _blank(blank)
        if missing > 0 and hasattr(after, "leading_lines"):
            lines = [*[cst.EmptyLine(indent=False)] * missing, *blank]
            body[place + len(statements)] = after.with_changes(leading_lines=lines)
    return module.with_changes(body=body)


def made_by(line: cst.CSTNode) -> Iterator[ImportNode]:
    """The imports that a statement of the module makes, also those that it tries to make."""
    if isinstance(line, cst.Try):
        for inner in line.body.body:
            yield from made_by(inner)
    for node in line.body if isinstance(line, cst.SimpleStatementLine) else ():
        if isinstance(node, cst.Import | cst.ImportFrom):
            yield node


def _names(node: cst.CSTNode, run: bool = False) -> set[str]:
    """The roots of all names below a node, outside of imports.

    Args:
      node: where to look.
      run: only those that are looked up when the statement runs, not those in functions.
    """
    if run and isinstance(node, cst.FunctionDef):
        p = node.params
        everything = [*p.posonly_params, *p.params, *p.kwonly_params]
        parts = [*node.decorators, *(x.default for x in everything if x.default is not None)]
        parts += [x.annotation for x in everything if x.annotation is not None]
        parts += [node.returns] if node.returns is not None else []
        return {name for part in parts for name in _names(part)}
    if run and isinstance(node, cst.ClassDef):
        parts = [*node.decorators, *node.bases, *node.keywords, *node.body.body]
        return {name for part in parts for name in _names(part, run=True)}
    return {name.split(".")[0] for name in references(node)}


# What is set through these is read when JAX is imported or its devices are first asked for.
_SETTINGS = {"environ", "putenv", "jax.config", "jax.distributed", "config.update"}


def _sets_up(body: Sequence[cst.CSTNode], roots: set[str]) -> bool:
    """Whether some statement sets JAX up before one uses the names."""
    for line in body:
        if roots & _names(line):
            return False
        if _touches(line):
            return True
    return False


def _touches(line: cst.CSTNode) -> bool:
    """Whether a statement refers to `os.environ`, `os.putenv` or `jax.config` as it runs."""
    return not isinstance(line, cst.FunctionDef | cst.ClassDef) and _sets(line)


def _sets(node: cst.CSTNode) -> bool:
    """Whether there is such a reference anywhere below a node."""
    dotted_names = (f".{name}." for name in references(node))
    return any(f".{setting}." in name for name in dotted_names for setting in _SETTINGS)


_OURS = ("jax", "flax", "optax", "optax_bridge", "legacy_optim")


def _behind_first_of_ours(body: Sequence[cst.CSTNode]) -> int:
    """Behind the first statements that import JAX, Flax or Optax as they run; 0 without any."""
    first = next((i for i, line in enumerate(body) if _imports_ours(line)), -1) + 1
    while 0 < first < len(body) and _imports_ours(body[first]):
        first += 1
    return first


def _imports_ours(node: cst.CSTNode) -> bool:
    """Whether a statement imports JAX, Flax or Optax as it runs."""
    if isinstance(node, cst.Import | cst.ImportFrom):
        return any(mentions(node, name) for name in _OURS)
    if isinstance(node, cst.FunctionDef | cst.BaseExpression):
        return False
    return any(_imports_ours(inner) for inner in children(node))


def _place(body: Sequence[cst.CSTNode], roots: set[str], old: int | None) -> int:
    """Behind the last import of JAX or Flax at the top, else of anything, else the docstring.

    JAX reads flags and its environment when it is imported, so never above the program's own first
    import of JAX, Flax or Optax, nor above what sets the environment before the names' first use.
    Above their use as the module runs in any case.
    """
    used = next((i for i, line in enumerate(body) if roots & _names(line)), len(body))
    run = next((i for i, line in enumerate(body) if roots & _names(line, run=True)), len(body))
    last_any, last_ours, settings = 0, 0, 0
    for index, line in enumerate(body[:used]):
        if _touches(line):
            settings = index + 1
        if not isinstance(line, cst.SimpleStatementLine):
            continue
        first = line.body[0]
        if isinstance(first, cst.Import | cst.ImportFrom):
            last_any = index + 1
            if any(name.split(".")[0] in ("jax", "flax") for name, _, _ in aliases(first)):
                last_ours = index + 1
        elif (
            isinstance(first, cst.Expr)
            and index == 0
            and isinstance(first.value, cst.SimpleString | cst.ConcatenatedString)
        ):
            last_any = 1
        elif last_any and not _sets_up(body[index:], roots):
            break
    place = last_ours or last_any
    if place <= settings:
        place = max(settings, last_any)
    if old is not None and place <= old < len(body):
        place = max(place, min(old + 1, used))
    return min(max(place, _behind_first_of_ours(body)), run)
