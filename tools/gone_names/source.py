"""Reads a release off its files: nothing is imported, so no release is too old.

Follows imports within the release, stars too. What is bound by anything but a definition, a class,
an import or a call of a class is a name without parts.
"""

import ast
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Module -> name -> {"keywords": [...], "attributes": {name: keywords}}, each only where known.
Snapshot = dict[str, dict[str, dict[str, Any]]]

_NOT_PUBLIC = ("tests", "testing", "conftest", "examples", "internal_test_util", "doc")


@dataclass
class Bound:
    """The value of a name."""

    keywords: list[str] | None = None
    attributes: dict[str, "Bound"] | None = None
    instance: dict[str, "Bound"] = field(default_factory=dict)
    module: str | None = None
    outside: bool = False
    whole_module: bool = False
    public: bool = False


@dataclass
class Release:
    """The files of a release."""

    folder: Path
    package: str
    _files: dict[str, Path] = field(default_factory=dict)
    _names: dict[str, dict[str, Bound]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        root = self.folder.joinpath(*self.package.split("."))
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(self.folder).with_suffix("").parts
            self._files[".".join(parts).removesuffix(".__init__")] = path

    def snapshot(self) -> Snapshot:
        """Every public module's public names."""
        snapshot: Snapshot = {}
        for module in self._files:
            parts = module.split(".")
            if any(p.startswith("_") or p in _NOT_PUBLIC or p.endswith("_test") for p in parts):
                continue
            package = self._files[module].name == "__init__.py"
            snapshot[module] = {
                name: _entry(bound) if package or not bound.public else {}
                for name, bound in sorted(self.names(module).items())
                if is_public(name) and not bound.whole_module and (package or not bound.outside)
            }
        return snapshot

    def names(self, module: str) -> dict[str, Bound]:
        """The names that a module binds."""
        if module not in self._names:
            self._names[module] = names = {}  # before reading: modules import each other
            for child in self._files:
                parent, _, name = child.rpartition(".")
                if parent == module and not name.startswith("_"):  # may always be imported
                    names[name] = Bound(module=child)
            text = self._files[module].read_text(encoding="utf-8", errors="replace")
            try:
                body = ast.parse(text).body
            except SyntaxError:  # a template, or newer or older than this Python
                return names
            _Reader(self, module, names).read(body)
        return self._names[module]

    def has(self, module: str) -> bool:
        """True if a module belongs to the release."""
        return module in self._files

    def package_of(self, module: str, level: int) -> str:
        """Returns the package that `from . import` means in a module."""
        parts = module.split(".")
        drop = level - 1 if self._files[module].name == "__init__.py" else level
        return ".".join(parts[: len(parts) - drop])


class _Reader:
    def __init__(self, release: Release, module: str, names: dict[str, Bound]):
        self._release = release
        self._module = module
        self._names = names

    def read(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            method = getattr(self, f"_{type(node).__name__}", None)
            if method is not None:
                method(node)

    def _If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.read(node.body)
        self.read(node.orelse)

    def _Try(self, node: ast.Try) -> None:
        for handler in node.handlers:
            self.read(handler.body)
        self.read([*node.body, *node.orelse, *node.finalbody])

    def _With(self, node: ast.With | ast.For) -> None:
        self.read(node.body)

    _For = _With

    def _FunctionDef(self, node: ast.FunctionDef) -> None:
        self._names[node.name] = _function(node)

    def _ClassDef(self, node: ast.ClassDef) -> None:
        self._names[node.name] = self._class(node)

    def _Import(self, node: ast.Import) -> None:
        for alias in node.names:
            target = alias.name if alias.asname else alias.name.partition(".")[0]
            name = alias.asname or target
            if self._release.has(target):
                self._names[name] = Bound(module=target)
            else:
                self._names[name] = Bound(outside=True, whole_module=True)

    def _ImportFrom(self, node: ast.ImportFrom) -> None:
        source = node.module or ""
        if node.level:
            base = self._release.package_of(self._module, node.level)
            source = f"{base}.{source}".rstrip(".") if source else base
        for alias in node.names:
            if alias.name == "*":
                if self._release.has(source):
                    self._names |= self._release.names(source)
                continue
            self._names[alias.asname or alias.name] = self._from_import(source, alias.name)

    def _from_import(self, source: str, name: str) -> Bound:
        if self._release.has(source):
            names = self._release.names(source)
            if name in names:
                # What a module takes from a public one for itself is that one's, not its own.
                public = not any(part.startswith("_") for part in source.split("."))
                return dataclasses.replace(names[name], public=public)
            if self._release.has(f"{source}.{name}"):
                return Bound(module=f"{source}.{name}")
            return Bound()
        top = self._release.package.partition(".")[0]
        outside = source.partition(".")[0] != top
        return Bound(outside=outside, whole_module=outside and source == "__future__")

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Name) and node.value is not None:
            self._names[node.target.id] = self._value(node.value)

    def _Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                value = self._value(node.value)
                is_primitive = target.id.endswith("_p")  # JAX's own
                self._names[target.id] = Bound() if is_primitive else value
                if target.id == "_deprecations" and isinstance(node.value, ast.Dict):
                    self._still_there(node.value)
            elif isinstance(target, ast.Tuple | ast.List):
                for part in target.elts:
                    if isinstance(part, ast.Name):
                        self._names[part.id] = Bound()

    def _Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._names.pop(target.id, None)

    def _still_there(self, table: ast.Dict) -> None:
        """JAX's names that warn, and answer unless the second of the pair is None."""
        for key, value in zip(table.keys, table.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(value, ast.Tuple):
                continue
            last = value.elts[-1]
            if not (isinstance(last, ast.Constant) and last.value is None):
                self._names[str(key.value)] = self._value(last)

    def _value(self, node: ast.expr) -> Bound:
        if isinstance(node, ast.Name | ast.Attribute):
            return self._resolve(node) or Bound()
        if isinstance(node, ast.Call):
            called = self._resolve(node.func)
            if called is not None and called.attributes is not None:
                attributes = called.attributes | called.instance
                return dataclasses.replace(called, keywords=None, attributes=attributes)
            # jit(f), partial(jit, ...)(f), wraps(numpy.f)(f): f with another outside.
            if len(node.args) == 1:
                inner = self._resolve(node.args[0])
                if inner is not None and inner.attributes is None:
                    return inner
        return Bound()

    def _resolve(self, node: ast.expr) -> Bound | None:
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Attribute):
            value = self._resolve(node.value)
            if value is None:
                return None
            if value.module is not None and self._release.has(value.module):
                return self._release.names(value.module).get(node.attr)
            return (value.attributes or {}).get(node.attr)
        return None

    def _class(self, node: ast.ClassDef) -> Bound:
        attributes: dict[str, Bound] = {}
        fields: list[str] = []
        constructor: list[str] | None = None
        for base in node.bases:
            bound = self._resolve(base)
            if bound is None or bound.attributes is None:
                continue
            if ast.unparse(base).rpartition(".")[2].startswith("_"):
                attributes |= bound.attributes
            constructor = bound.keywords
            fields += bound.keywords or []
        for part in node.body:
            if isinstance(part, ast.FunctionDef):
                attributes[part.name] = _function(part, method=True)
            elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                attributes[part.target.id] = Bound()
                fields.append(part.target.id)
            elif isinstance(part, ast.Assign):
                for target in part.targets:
                    if isinstance(target, ast.Name):
                        attributes[target.id] = Bound()
        constructors = [
            p for p in node.body if isinstance(p, ast.FunctionDef) and p.name == "__init__"
        ]
        instance: dict[str, Bound] = {}
        if constructors:
            instance = {name: Bound() for name in _set_on_self(constructors[0]) if is_public(name)}
            constructor = _function(constructors[0], method=True).keywords
        elif fields:
            constructor = fields
        attributes = {name: bound for name, bound in attributes.items() if is_public(name)}
        return Bound(constructor, attributes=attributes, instance=instance)


def _function(node: ast.FunctionDef, method: bool = False) -> Bound:
    args = [a.arg for a in [*node.args.args, *node.args.kwonlyargs]]
    decorators = {ast.unparse(d) for d in node.decorator_list}
    if any("property" in d or "contextmanager" in d for d in decorators):
        return Bound()
    bound_first = method and "staticmethod" not in decorators and bool(node.args.args)
    return Bound(keywords=args[1:] if bound_first else args)


def _set_on_self(node: ast.FunctionDef) -> set[str]:
    targets = [t for n in ast.walk(node) if isinstance(n, ast.Assign) for t in n.targets]
    return {
        target.attr
        for target in targets
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
    }


def _entry(bound: Bound) -> dict[str, Any]:
    entry: dict[str, Any] = {"keywords": _keywords(bound)}
    attributes = (bound.attributes or {}).items()
    entry["attributes"] = {name: _keywords(value) for name, value in sorted(attributes)}
    return {key: value for key, value in entry.items() if value}


def _keywords(bound: Bound) -> list[str]:
    return sorted({k for k in bound.keywords or () if is_public(k)})


def is_public(name: str) -> bool:
    """Without an underscore, but for the private name that programs did use."""
    return not name.startswith("_") or name == "_DeviceArray"
