# pyright: strict
"""Resolves expressions to legacy names, through imports and aliases."""

import builtins
import functools
from collections.abc import Mapping, Sequence, Set

import libcst as cst

import legacy_optim
from legacy_optim import gone
from migration_guide.codemod.reading.bindings import Assignment, Scope
from migration_guide.codemod.reading.tree import dotted_name, root_name
from optax_bridge.correspondence import Entry, entries_by_class

OPTIM = "flax.optim"

# Class name -> entry of the correspondence.
BY_CLASS: dict[str, Entry] = entries_by_class()

EXPORTS = frozenset(legacy_optim.__all__)
# What is read of an optimizer. Other things have one of these as well; what has two of them is an
# optimizer by another name.
MARKS = frozenset({"target", "optimizer_def", "state.step", "state.param_states", "apply_gradient"})
# Modules of which it is known that they have no name of flax.optim's.
_KNOWN_STARS = (
    "collections", "flax.linen", "functools", "itertools", "jax", "jax.numpy", "math", "numpy",
    "os", "os.path", "typing",
)  # fmt: skip


def _brings_optim(module: str) -> bool:
    return module == "flax" or is_legacy(module)


def is_legacy(name: str) -> bool:
    """True if a canonical name is that of flax.optim or of something in it."""
    return f"{name}.".startswith(f"{OPTIM}.")


def canonical(name: str) -> str:
    """Returns one name for an export of several modules of flax.optim: `flax.optim.Adam`."""
    parts = name.split(".")
    if name.startswith(f"{OPTIM}.") and parts[-1] in EXPORTS:
        return f"{OPTIM}.{parts[-1]}"
    if name.startswith("flax.traverse_util.") and parts[-1] == "ModelParamTraversal":
        return f"{OPTIM}.ModelParamTraversal"
    return name


def shared_name(name: str) -> str:
    """Returns the name by which the files of a program know a thing: `module.name`."""
    return ".".join(name.split(".")[-2:])


class Names:
    """Resolves expressions of one module to the names that they were imported as."""

    def __init__(
        self,
        scopes: Mapping[cst.CSTNode, Scope],
        module_scope: Scope,
        parents: Mapping[cst.CSTNode, cst.CSTNode],
        stars: Sequence[str] = (),
    ):
        self._scopes = scopes
        self._module_scope = module_scope
        self._parents = parents
        self._stars = stars
        self._aliases: Mapping[str, str] = {}
        self._shared: Set[str] = frozenset()
        self._bound: dict[tuple[Scope, str], list[Assignment]] = {}
        self._found: dict[int, tuple[str | None, cst.CSTNode]] = {}  # by `id`, as kinds are

    def follow(self, aliases: Mapping[str, str], shared: Set[str]) -> None:
        """Takes the names of other files: imported ones with their canonical names, and others."""
        if (aliases, shared) != (self._aliases, self._shared):
            self._aliases, self._shared = aliases, shared
            self._found.clear()

    @functools.cached_property
    def unclear_star(self) -> bool:
        """True if names of flax.optim come from `import *`, and others may do so as well."""
        brings = any(_brings_optim(star) for star in self._stars)
        return brings and any(
            not _brings_optim(star) and star not in _KNOWN_STARS for star in self._stars
        )

    def dangling(self, node: cst.CSTNode) -> bool:
        """True if an expression is, for example, `optim.Adam`, and nothing binds `optim`."""
        text = dotted_name(node) or ""
        root, _, attributes = text.removeprefix("flax.").partition(".")
        if root != "optim" or attributes.split(".")[0] not in EXPORTS or self._stars:
            return False
        name = root_name(node)
        return name is not None and not self.assignments(name)

    def of(self, node: cst.CSTNode) -> str | None:
        """The canonical dotted name that a name or a chain of attributes was imported as."""
        entry = self._found.get(id(node))
        if entry is None:
            entry = self._found[id(node)] = self._resolve(node), node
        return entry[0]

    def entry(self, node: cst.CSTNode) -> Entry | None:
        """The entry of the legacy optimizer class that an expression names."""
        name = self.of(node)
        if name is None or not name.startswith(f"{OPTIM}."):
            return None
        return BY_CLASS.get(name.removeprefix(f"{OPTIM}."))

    def assignments(self, node: cst.Name) -> list[Assignment]:
        """Returns the bindings of a name, in the scope that binds it."""
        scope = self._scopes.get(node, self._module_scope)
        key = scope, node.value
        if key not in self._bound:
            assignments = scope.find(node.value)
            several = len(assignments) > 1
            real = [a for a in assignments if not self.is_fallback(a)] if several else assignments
            self._bound[key] = real or assignments
        return self._bound[key]

    def is_fallback(self, assignment: Assignment) -> bool:
        """True if an assignment is in an `except` clause for errors of an import."""
        node: cst.CSTNode | None = assignment.node
        while node is not None:
            if isinstance(node, cst.ExceptHandler):
                return _catches_import_errors(node)
            node = self._parents.get(node)
        return False

    def _resolve(self, node: cst.CSTNode) -> str | None:
        text, root = dotted_name(node), root_name(node)
        if text is None or root is None:
            return None
        assignments = self.assignments(root)
        if not assignments:
            return self._from_star(text)
        if not all(a.imported for a in assignments):
            return None
        names = {assignment.qualified_name(text) for assignment in assignments}
        return self.resolve_export(names.pop()) if len(names) == 1 else None

    def resolve_export(self, name: str) -> str:
        """Returns the canonical name of an import, followed through the files of the program."""
        parts = name.split(".")
        for end in range(2, len(parts) + 1) if self._aliases else ():
            origin = self._aliases.get(".".join(parts[end - 2 : end]))
            if origin is not None:
                return canonical(".".join([origin, *parts[end:]]))
        return canonical(name)

    def _from_star(self, text: str) -> str | None:
        """Returns the full name of one that nothing binds, if `import *` can have brought it."""
        first = text.split(".")[0]
        for star in reversed(self._stars):
            name = f"{star}.{text}"
            followed = self.resolve_export(name)
            is_shared = shared_name(f"{star}.{first}") in self._shared
            if followed != name or is_shared or (is_legacy(name) and first in EXPORTS):
                return followed
            if star == "flax" and first == "optim":
                return canonical(name)
            if gone.find(name) is not None and not hasattr(builtins, first):
                is_exported = (
                    s in _KNOWN_STARS or gone.find(s) or s in gone.owners() for s in self._stars
                )
                return canonical(name) if all(is_exported) else None
        return None


@functools.cache
def port_names(legacy: str, classes: frozenset[str]) -> frozenset[str]:
    """Returns a legacy hyper-parameter's names in the ports of some optimizers; of all if none."""
    entries = [BY_CLASS[name] for name in classes or BY_CLASS]
    return frozenset(
        hp.port for entry in entries for hp in entry.hyper_params if hp.legacy == legacy
    )


def _catches_import_errors(handler: cst.ExceptHandler) -> bool:
    kind = handler.type
    if isinstance(kind, cst.Tuple):
        caught = [dotted_name(element.value) for element in kind.elements]
    else:
        caught = [dotted_name(kind) if kind is not None else "Exception"]
    return any(
        name in ("ImportError", "ModuleNotFoundError", "AttributeError", "Exception")
        for name in caught
    )
