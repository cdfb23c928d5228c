"""Infers kinds of a module's expressions from those of its variables and fields so far."""

import abc
import functools
from collections.abc import Callable

import libcst as cst

from migration_guide.codemod.inference import flow
from migration_guide.codemod.inference.facts import Facts, fields, is_property
from migration_guide.codemod.inference.kinds import (
    ARRAY,
    CLASS,
    CREATE,
    DEFINITION,
    FOREIGN,
    HYPER_PARAMS,
    LEGACY,
    NOTHING,
    OPTIMIZER,
    OWN_GROUPS,
    STATE,
    Function,
    Instance,
    Items,
    Kind,
    Several,
    item,
    join_kinds,
    only,
)
from migration_guide.codemod.inference.project import Project
from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.names import OPTIM, Names
from migration_guide.codemod.reading.scopes import scopes
from migration_guide.codemod.reading.tree import last_name

_JAX = ("flax", "jax", "legacy_optim", "optax_bridge")


class Expressions(abc.ABC):
    """Kinds of the expressions of one module, as far as they are known.

    Args:
      module: the parsed module.
      project: facts from other files.
    """

    def __init__(self, module: cst.Module, project: Project):
        self.module = module
        self.scopes = scopes(module)
        self.facts = Facts()
        self.facts.collect(self.module)
        self.parents = self.facts.parents
        stars = [imports.star(node) for node in self.facts.imports]
        self.names = Names(
            self.scopes, self.scopes[self.module], self.parents, [s for s in stars if s]
        )
        self.reset(project)

    def reset(self, project: Project) -> None:
        """Resets all kinds to the facts from other files.

        What a file imports decides: fields and functions of the same names are others in one that
        trains with another library.
        """
        self._known_modules = project.modules, project.jax_modules
        trains_with_jax = not self._has_another_library or self.imports_jax
        self.project = project if trains_with_jax else project.for_another_library()
        self.names.follow(self.project.aliases)
        self._variables: dict[tuple[int, str], Kind] = {}
        self.fields: dict[str, Kind] = {}
        self._returns: dict[cst.CSTNode, Kind] = {}
        self._memo: dict[cst.CSTNode, Kind] = {}
        self._array_target = False
        self._changed = False
        # Other libraries' optimizers move by the names of fields once all of ours are known: what
        # has arrived somewhere stays, and there must be something that rules it out.
        self._follows_foreign = False

    @functools.cached_property
    def _has_another_library(self) -> bool:
        return any(imports.is_without_jax(name[0]) for name in self._origins)

    @property
    def imports_jax(self) -> bool:
        """True if the file imports JAX or Flax, or another file of the program that does."""
        modules, of_jax = self._known_modules
        return any(
            name[0] in _JAX or (name[0] in ("", *modules) and not of_jax.isdisjoint(name))
            for name in self._origins
        )

    @functools.cached_property
    def _origins(self) -> list[tuple[str, ...]]:
        return [name for node in self.facts.imports for name in imports.origins(node)]

    def kind(self, node: cst.CSTNode) -> Kind:
        """Returns the kind of an expression of the original module."""
        if node not in self._memo:
            self._memo[node] = NOTHING  # an expression that contains itself adds nothing
            self._memo[node] = self._kind(node)
        return self._memo[node]

    def legacy_base(self, node: cst.ClassDef) -> bool:
        """True if a class derives from one of flax.optim's definitions, directly or by another."""
        return self._derives(
            node,
            lambda base, name: (
                name == f"{OPTIM}.OptimizerDef"
                or self.names.entry(base) is not None
                or self.is_own_definition(name)
            ),
        )

    def is_groups(self, node: cst.ClassDef) -> bool:
        """True if a class derives from MultiOptimizer, directly or by another."""
        return self._derives(
            node,
            lambda base, name: (
                name == f"{OPTIM}.MultiOptimizer"
                or ".".join(name.split(".")[-2:]) in self.project.own_groups
            ),
        )

    def _derives(
        self, node: cst.ClassDef, is_one: Callable[[cst.BaseExpression, str], bool]
    ) -> bool:
        """True if some base of a class is one, by the expression and its imported name."""
        for base in node.bases:
            if is_one(base.value, self.names.of(base.value) or ""):
                return True
            if isinstance(base.value, cst.Name):
                parents = [assignment.node for assignment in self.names.assignments(base.value)]
                if any(
                    isinstance(p, cst.ClassDef) and p is not node and self._derives(p, is_one)
                    for p in parents
                ):
                    return True
        return False

    def is_own_definition(self, name: str) -> bool:
        """True if an imported name is a definition class of another file of the project."""
        return ".".join(name.split(".")[-2:]) in self.project.definitions

    def assign(self, target: cst.CSTNode, kind: Kind) -> None:
        """Adds to the kind of a target."""
        if not kind:
            return
        if isinstance(target, cst.Name):
            key = self._key(target)
            if key is not None:
                self._variables[key] = self._add_kinds(self._variables.get(key, NOTHING), kind)
        elif isinstance(target, cst.Attribute):
            if self.names.of(target) is None:
                self.assign_field(target.attr.value, kind)
        elif isinstance(target, cst.Subscript):
            self.assign(target.value, frozenset([Items(kind)]))
        elif isinstance(target, cst.Tuple | cst.List):
            for index, element in enumerate(target.elements):
                if isinstance(element, cst.StarredElement):
                    self.assign(element.value, frozenset([Items(item(kind))]))
                else:
                    after_star = any(
                        isinstance(e, cst.StarredElement) for e in target.elements[:index]
                    )
                    place = index - len(target.elements) if after_star else index
                    self.assign(
                        element.value,
                        join_kinds([item(kind, place), self._named_field(kind, place)]),
                    )

    def _named_field(self, kind: Kind, index: int) -> Kind:
        """Returns the kinds of the fields of named tuples, by position."""
        names = [fields(atom.node) for atom in kind if isinstance(atom, Instance)]
        at_index = [n[index] for n in names if -len(n) <= index < len(n)]
        return join_kinds(self.fields.get(name, NOTHING) for name in at_index)

    def assign_field(self, name: str, kind: Kind) -> None:
        """Adds to the kind of fields of a name."""
        if kind:
            self.fields[name] = self._add_kinds(self.fields.get(name, NOTHING), kind)

    def assign_parameter(
        self, function: cst.FunctionDef | cst.Lambda, parameter: cst.Param, kind: Kind
    ) -> None:
        """Adds to the kind of a function's parameter."""
        scope = self.scopes.get(function.body)
        if kind and scope is not None:
            key = (id(scope), parameter.name.value)
            self._variables[key] = self._add_kinds(self._variables.get(key, NOTHING), kind)

    def parameter_kind(self, function: cst.FunctionDef | cst.Lambda, parameter: cst.Param) -> Kind:
        """Returns the kind of a function's parameter."""
        scope = self.scopes.get(function.body)
        return self._variables.get((id(scope), parameter.name.value), NOTHING)

    def return_kind(self, function: cst.CSTNode) -> Kind:
        """Returns the kind of what a function of this module may return."""
        return self._returns.get(function, NOTHING)

    def _add_kinds(self, old: Kind, more: Kind) -> Kind:
        new = join_kinds([old, more])
        if not new - old:  # nothing new; what nests too deeply is left out, which must not go on
            return old
        self._changed = True
        return new

    def _key(self, node: cst.Name) -> tuple[int, str] | None:
        for assignment in self.names.assignments(node):
            return id(assignment.scope), node.value
        return None

    def _kind(self, node: cst.CSTNode) -> Kind:
        match node:
            case cst.Name():
                return self._name_kind(node)
            case cst.Attribute():
                return self._attribute_kind(node)
            case cst.Call():
                return self._call_kind(node)
            case cst.Lambda():
                return frozenset([Function(node)])
            case cst.Tuple():
                if any(isinstance(e, cst.StarredElement) for e in node.elements):
                    return NOTHING
                return frozenset([Several(tuple(self.kind(e.value) for e in node.elements))])
            case cst.List() | cst.Set():
                return self._items([e.value for e in node.elements])
            case cst.Dict():
                return self._items([e.value for e in node.elements])
            case cst.ListComp() | cst.SetComp() | cst.GeneratorExp():
                return self._items([node.elt])
            case cst.DictComp():
                return self._items([node.value])
            case cst.Subscript():
                inside = item(self.kind(node.value), flow.index_of(node))
                # What the rule for hyper-parameters writes for own groups.
                is_list = HYPER_PARAMS in inside and flow.text_of(node) == "hyper_params"
                return inside | only(LEGACY) if is_list else inside
            case cst.IfExp():
                return join_kinds([self.kind(node.body), self.kind(node.orelse)])
            case cst.BooleanOperation():
                return join_kinds([self.kind(node.left), self.kind(node.right)])
            case cst.NamedExpr():
                return self.kind(node.value)
            case cst.BinaryOperation() if self.project.follows_arrays:
                return (self.kind(node.left) | self.kind(node.right)) & only(ARRAY)
        return NOTHING

    @abc.abstractmethod
    def _call_kind(self, node: cst.Call) -> Kind:
        """Returns the kind of a call's result."""

    def _items(self, values: list[cst.BaseExpression]) -> Kind:
        inside = join_kinds(self.kind(value) for value in values)
        return frozenset([Items(inside)]) if inside else NOTHING

    def _name_kind(self, node: cst.Name) -> Kind:
        imported = self.names.of(node)
        if imported is not None:
            return self._import_kind(node, imported)
        kinds = []
        for assignment in self.names.assignments(node):
            definition = getattr(assignment, "node", None)
            if isinstance(definition, cst.FunctionDef):
                kinds.append(frozenset([Function(definition)]))
            elif isinstance(definition, cst.ClassDef):
                is_legacy_class = self.legacy_base(definition)
                kinds.append(only(CLASS) if is_legacy_class else frozenset([Instance(definition)]))
        key = self._key(node)
        return join_kinds([*kinds, self._variables.get(key, NOTHING) if key else NOTHING])

    def _import_kind(self, node: cst.CSTNode, name: str) -> Kind:
        if self.names.entry(node) is not None:
            return only(CLASS)
        if self.is_own_definition(name):
            return only(CLASS)
        if imports.is_foreign(name):
            return only(FOREIGN)
        return NOTHING

    def _attribute_kind(self, node: cst.Attribute) -> Kind:
        imported = self.names.of(node)
        if imported is not None:
            return self._import_kind(node, imported)
        if self.names.dangling(node):
            return only(FOREIGN)  # unknown, so nothing of it is rewritten
        base, attribute = self.kind(node.value), node.attr.value
        if OPTIMIZER in base and attribute in ("state", "optimizer_def", "target"):
            definition = only(DEFINITION) | (base & {OWN_GROUPS})
            of = {"state": only(STATE), "optimizer_def": definition}
            of |= {"target": only(ARRAY)} if self._array_target else {}
            return of.get(attribute, NOTHING)
        if DEFINITION in base and attribute in ("hyper_params", "create"):
            if attribute == "create":
                return only(CREATE) | (base & {OWN_GROUPS})
            return only(HYPER_PARAMS) | (only(LEGACY) if base & {LEGACY, OWN_GROUPS} else NOTHING)
        if self._is_something_else(node, base):
            return NOTHING
        methods = [
            frozenset([Function(m, bound=1)])
            for m in self.facts.methods.get(attribute, ())
            if not is_property(m)
        ]
        here = self.fields.get(attribute, NOTHING)
        by_name = join_kinds([here, self.project.fields.get(attribute, NOTHING), *methods])
        by_its_class = join_kinds(self.kind(v) for v in self._set_by_its_class(node, base) or ())
        if not self._follows_foreign:
            by_name = join_kinds([by_name - {FOREIGN}, by_its_class])
        return _drop_conflicts(by_its_class or here, by_name)

    def _is_something_else(self, node: cst.Attribute, base: Kind) -> bool:
        """True if the class itself puts an instance of an unknown class into a field."""
        values = self._set_by_its_class(node, base)
        return bool(values) and all(map(self._is_unknown_instance, values))

    def _set_by_its_class(self, node: cst.Attribute, base: Kind) -> list[cst.BaseExpression] | None:
        """Returns the values that a class assigns to a field; None if a possible class does not."""
        owners = {atom.node for atom in base if isinstance(atom, Instance)}
        owner = self.facts.of_self.get(node)
        assigned = [
            self.facts.set_on_self.get((c, node.attr.value)) for c in owners or {owner} if c
        ]
        if None in assigned:
            return None
        return [value for values in assigned if values for value in values]

    def _is_unknown_instance(self, value: cst.BaseExpression) -> bool:
        if not isinstance(value, cst.Call) or self.kind(value):
            return False
        return last_name(value.func)[:1].isupper()


def _drop_conflicts(evidence: Kind, kind: Kind) -> Kind:
    """Returns the kinds put into fields of a name elsewhere, less those that the nearest rules out.

    Other libraries' optimizers lie in fields of the same names.
    """
    ours = only(OPTIMIZER) | only(DEFINITION)
    if evidence & ours and FOREIGN not in evidence:
        return kind - {FOREIGN}
    return kind - ours if FOREIGN in evidence and not evidence & ours else kind
