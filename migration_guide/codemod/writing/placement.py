"""Places imports: never above settings that must precede the import of JAX."""

import builtins
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from migration_guide.codemod.reading.imports import (
    aliases,
    leading_blank,
    made_by,
    mentions,
    references,
)
from migration_guide.codemod.reading.marks import CELL
from migration_guide.codemod.reading.tree import children, dotted_name, walk


@dataclass(frozen=True, order=True)
class Import:
    """`import module`, or `from module import name`."""

    module: str
    name: str = ""

    @property
    def root(self) -> str:
        """The name that it binds."""
        return self.name or self.module.split(".")[0]

    @property
    def is_of_python(self) -> bool:
        """True if it is one of Python's own modules."""
        return self.module.split(".")[0] in sys.stdlib_module_names

    def __str__(self) -> str:
        return f"from {self.module} import {self.name}" if self.name else f"import {self.module}"


def with_imports(
    module: cst.Module, needed: Iterable[Import], old: int | None = None, at_top: bool = False
) -> cst.Module:
    """Adds imports where they are missing: above all, or within the block that needs them."""
    missing = _missing(module, needed)
    # Python's own modules may stand anywhere. All others import JAX: they stay together.
    roots = {item.root for item in missing if not item.is_of_python}
    block = _block_of_ours(module, roots) if roots and not at_top else None
    if block is not None:
        within: Any = block.body
        inner = with_imports(cst.Module(within), [n for n in missing if not n.is_of_python])
        module = cst.ensure_type(
            module.deep_replace(block, block.with_changes(body=inner.body)), cst.Module
        )
        missing = [item for item in missing if item.is_of_python]
    body: list[Any] = list(module.body)
    for item in missing:
        line = cst.parse_statement(str(item), config=module.config_for_parsing)
        if item.is_of_python:
            _insert_standard(body, item, line)
        else:
            place = _place(body, roots, old)
            _insert(body, _sorted_place(body, item, place), line)
    return module.with_changes(body=body)


def _missing(module: cst.Module, needed: Iterable[Import]) -> list[Import]:
    """Returns the imports that a module lacks, or has only below their first use."""
    required = set(needed)
    roots = {item.root for item in required}
    have: set[str] = set()
    used: set[str] = set()
    for line in module.body:
        for node in made_by(line):
            for name, as_name, is_dotted in aliases(node):
                have.add(as_name.split(".")[0] if is_dotted else as_name if name == as_name else "")
                have.add(f"{name} as {as_name}")
        used |= {name for name in roots - have if name in _names(line, run=True)}
        # An import below a use is too late for it.
        have -= used | {f"{name} as {name}" for name in used}
    return [
        item
        for item in sorted(required)
        if (f"{item.module}.{item.name} as {item.name}" not in have if item.name else True)
        and (item.name or not {item.module, f"{item.module} as {item.module}"} & have)
    ]


def _insert(body: list[Any], place: int, line: cst.CSTNode) -> None:
    """Inserts a statement, below the blank lines of its place."""
    after = body[place] if place < len(body) else None
    above = [*getattr(after, "leading_lines", ())]
    marks = [index + 1 for index, empty in enumerate(above) if _is_mark(empty)]
    count = marks[-1] if marks else leading_blank(above)
    if after is not None and count and _is_import(after):
        body[place] = after.with_changes(leading_lines=above[count:])
        line = line.with_changes(leading_lines=above[:count])
    body.insert(place, line)


def _insert_standard(body: list[Any], item: Import, line: cst.CSTNode) -> None:
    """Inserts the import of one of Python's modules among those, or above all other imports."""
    first = next((i for i, node in enumerate(body) if _is_import(node)), None)
    while first is not None and first < len(body) and _module_of(body[first]) == "__future__":
        first += 1
    if first is None or first >= len(body) or not _is_import(body[first]):
        body.insert(_place(body, {item.root}, None), line)
        return
    end = _block(body, first + 1)[1]
    root = _module_of(body[first]).split(".")[0]
    if root in sys.stdlib_module_names:
        _insert(body, _in_order(body, item, first, end), line)
        return
    _insert(body, first, line)
    below = body[first + 1]
    if not leading_blank(below.leading_lines):
        lines = [cst.EmptyLine(indent=False), *below.leading_lines]
        body[first + 1] = below.with_changes(leading_lines=lines)


def _sorted_place(body: Sequence[cst.CSTNode], item: Import, place: int) -> int:
    """Returns isort's position for an import, within the block of imports around a position."""
    start, end = _block(body, place)
    ours = next((i for i, line in enumerate(body) if _imports_ours(line)), place)
    return _in_order(body, item, max(start, min(ours, place)), end)


def _block(body: Sequence[cst.CSTNode], place: int) -> tuple[int, int]:
    """The imports around a place that no blank line and no other statement divides."""
    start = end = place
    while start > 0 and _is_import(body[start - 1]):
        start -= 1
        if _begins_block(body[start]):
            break
    while end < len(body) and _is_import(body[end]) and not _begins_block(body[end]):
        end += 1
    return start, end


def _in_order(body: Sequence[cst.CSTNode], item: Import, start: int, end: int) -> int:
    """The place of an import among those from one place to another."""
    kinds = [_is_from(line) for line in body[start:end]]
    by_kind = kinds == sorted(kinds)  # else they are sorted by module alone, if at all
    new = (by_kind and bool(item.name), item.module.lower())

    def comes_later(line: cst.CSTNode) -> bool:
        return (by_kind and _is_from(line), _module_of(line).lower()) > new

    return next((i for i in range(start, end) if comes_later(body[i])), end)


def _is_import(line: cst.CSTNode) -> bool:
    if not isinstance(line, cst.SimpleStatementLine):
        return False
    return isinstance(line.body[0], cst.Import | cst.ImportFrom)


def _is_from(line: cst.CSTNode) -> bool:
    return isinstance(line, cst.SimpleStatementLine) and isinstance(line.body[0], cst.ImportFrom)


def _module_of(line: cst.CSTNode) -> str:
    """The module of an import statement, "" for others and relative ones."""
    node = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
    if isinstance(node, cst.ImportFrom):
        return dotted_name(node.module) or ""
    return dotted_name(node.names[0].name) or "" if isinstance(node, cst.Import) else ""


def _begins_block(line: cst.CSTNode) -> bool:
    """True if a blank line stands above a statement, or the beginning of a notebook's cell."""
    lines = getattr(line, "leading_lines", ())
    return any(empty.comment is None or _is_mark(empty) for empty in lines)


def _is_mark(empty: cst.EmptyLine) -> bool:
    return empty.comment is not None and empty.comment.value.startswith(CELL)


def _block_of_ours(module: cst.Module, roots: set[str]) -> cst.IndentedBlock | None:
    """The block that alone uses the names, and imports JAX where the module's top does not."""
    users = [line for line in module.body if roots & _names(line)]
    if len(users) != 1 or any(map(_is_import_of_ours, module.body)) or not _sets(module):
        return None
    for block in walk(users[0]):
        if isinstance(block, cst.IndentedBlock) and any(map(_is_import_of_ours, block.body)):
            outside = users[0].deep_replace(block, cst.IndentedBlock([]))
            return None if isinstance(outside, cst.CSTNode) and roots & _names(outside) else block
    return None


def comes_too_early(old: cst.Module, new: cst.Module) -> bool:
    """True if the top of a module imports JAX now, and did not, and something sets JAX up later."""
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
    uses = (i for i, line in enumerate(module.body) if name in _names(line, run=True))
    place = 0
    for index, line in enumerate(module.body[: next(uses, len(module.body))]):
        if not isinstance(line, cst.SimpleStatementLine):
            break
        if _is_import(line):
            place = index + 1
    return _apart(module, place, function, 2)


def behind_imports(module: cst.Module, setting: cst.CSTNode, root: str) -> cst.Module:
    """The module with a setting of a package, behind the imports that precede its first use."""
    place, is_there = 0, False
    for index, line in enumerate(module.body):
        if is_there and _is_busy(line):
            break
        imports_it = any(mentions(node, root) for node in made_by(line))
        if _is_import(line) or (imports_it and not is_there):
            place = index + 1
        is_there = is_there or imports_it
    return with_imports(_apart(module, place, setting, 1), [Import(root)])


def _is_busy(line: cst.CSTNode) -> bool:
    """True if a statement may draw random numbers, or defines something."""
    if isinstance(line, cst.FunctionDef | cst.ClassDef):
        return True
    foreign = _names(line) - sys.stdlib_module_names - vars(builtins).keys()
    return bool(foreign) and not _touches(line) and any(isinstance(n, cst.Call) for n in walk(line))


def _apart(module: cst.Module, place: int, statement: cst.CSTNode, blank: int) -> cst.Module:
    """The module with a statement at a place, between blank lines."""
    body: list[Any] = list(module.body)
    empty = cst.EmptyLine(indent=False)
    body.insert(place, statement.with_changes(leading_lines=[empty] * blank))
    if place + 1 < len(body):
        after = body[place + 1]
        lines = [*getattr(after, "leading_lines", ())]
        missing = blank - leading_blank(lines)
        if missing > 0 and hasattr(after, "leading_lines"):
            body[place + 1] = after.with_changes(leading_lines=[*[empty] * missing, *lines])
    return module.with_changes(body=body)


def _names(node: cst.CSTNode, run: bool = False) -> set[str]:
    """The roots of all names below a node, outside of imports."""
    if run and isinstance(node, cst.FunctionDef):
        p = node.params
        everything = [*p.posonly_params, *p.params, *p.kwonly_params]
        nodes = [*node.decorators, *(x.default for x in everything if x.default is not None)]
        nodes += [x.annotation for x in everything if x.annotation is not None]
        nodes += [node.returns] if node.returns is not None else []
        return {name for child in nodes for name in _names(child)}
    if run and isinstance(node, cst.ClassDef):
        nodes = [*node.decorators, *node.bases, *node.keywords, *node.body.body]
        return {name for child in nodes for name in _names(child, run=True)}
    return {name.split(".")[0] for name in references(node)}


# What is set through these is read when JAX is imported or its devices are first asked for.
_SETTINGS = {"environ", "putenv", "jax.config", "jax.distributed", "config.update"}


def _sets_up(body: Sequence[cst.CSTNode], roots: set[str]) -> bool:
    """True if some statement sets JAX up before one uses the names."""
    for line in body:
        if roots & _names(line):
            return False
        if _touches(line):
            return True
    return False


def _touches(line: cst.CSTNode) -> bool:
    """True if a statement refers to `os.environ`, `os.putenv` or `jax.config` as it runs."""
    return not isinstance(line, cst.FunctionDef | cst.ClassDef) and _sets(line)


def _sets(node: cst.CSTNode) -> bool:
    """True if there is such a reference anywhere below a node."""
    dotted_names = (f".{name}." for name in references(node))
    return any(f".{setting}." in name for name in dotted_names for setting in _SETTINGS)


_OURS = ("jax", "flax", "optax", "optax_bridge", "legacy_optim")


def _after_first_own(body: Sequence[cst.CSTNode]) -> int:
    """Returns the index after the first imports of JAX, Flax or Optax; 0 without any."""
    first = next((i for i, line in enumerate(body) if _imports_ours(line)), -1) + 1
    while 0 < first < len(body) and _imports_ours(body[first]):
        first += 1
    return first


def _imports_ours(node: cst.CSTNode) -> bool:
    """True if a statement imports JAX, Flax or Optax as it runs."""
    if isinstance(node, cst.Import | cst.ImportFrom):
        return any(mentions(node, name) for name in _OURS)
    if isinstance(node, cst.FunctionDef | cst.BaseExpression):
        return False
    return any(_imports_ours(inner) for inner in children(node))


def _place(body: Sequence[cst.CSTNode], roots: set[str], old: int | None) -> int:
    """Returns the index after the last import of JAX or Flax, any import, or the docstring."""
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
    return min(max(place, _after_first_own(body)), run)
