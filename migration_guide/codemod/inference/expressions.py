"""Infers kinds of a module's expressions from those of its variables and fields so far."""

import abc
import functools
from collections.abc import Callable

import libcst as cst

from migration_guide.codemod.inference.cells import Cells
from migration_guide.codemod.inference.facts import Callable_, Facts, fields, is_property
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
    items,
    join_kinds,
    only,
)
from migration_guide.codemod.inference.project import Project, portable
from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.names import OPTIM, Names, shared_name
from migration_guide.codemod.reading.scopes import scopes
from migration_guide.codemod.reading.tree import (
    index_of,
    keyword_of,
    last_name,
    method_call,
    names_bound,
    text_of,
)
from optax_bridge.correspondence import Entry

_JAX = ("flax", "jax", "legacy_optim", "optax_bridge")


class Expressions(abc.ABC):
    """Kinds of the expressions of one module, as far as they are known."""

    key: str  # by which other files refer to the module

    def __init__(self, module: cst.Module):
        self.module = module
        self.scopes = scopes(module)
        self.facts = Facts()
        self.facts.collect(self.module)
        self.parents = self.facts.parents
        stars = [imports.star(node) for node in self.facts.imports]
        self.names = Names(
            self.scopes, self.scopes[self.module], self.parents, [s for s in stars if s]
        )
        self.reset(Project())

    def reset(self, project: Project) -> None:
        """Resets all kinds to the facts from other files."""
        self._known_modules = project.modules, project.jax_modules
        self.trains_with_jax = not self._has_another_library or self.imports_jax
        self.project = project if self.trains_with_jax else project.for_another_library()
        self.names.follow(
            self.project.aliases, self.project.values.keys() | self.project.returns.keys()
        )
        self._cells = Cells()
        self.fields = self._cells.fields
        self._array_target = False
        # Other libraries' optimizers move by the names of fields once all of ours are known: what
        # has arrived somewhere stays, and there must be something that rules it out.
        self._follows_foreign = self._holds_back_foreign = False
        self.shared = Project()
        self.external: set[cst.CSTNode] = set()
        self.legacy: set[cst.CSTNode] = set()
        self.legacy_classes = [c for c in self.facts.classes if self.legacy_base(c)]
        self.own_classes = [c for c in self.facts.classes if self._defines_apply_gradient(c)]

    @functools.cached_property
    def uses_optim(self) -> bool:
        """True if this file imports flax.optim, or refers to it through flax."""
        return any(imports.mentions(node, OPTIM) for node in self.facts.imports) or any(
            (self.names.of(node) or "").startswith(OPTIM) for node in self.facts.attributes
        )

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
    def _origins(self) -> list[list[str]]:
        """The parts of the names that the file imports, "" first where one is relative."""
        nodes = self.facts.imports
        names = [name for node in nodes for name, _, _ in imports.aliases(node)]
        return [name.split(".") for name in (*names, *filter(None, map(imports.star, nodes)))]

    def kind(self, node: cst.CSTNode) -> Kind:
        """Returns the kind of an expression of the original module."""
        return self._cells.of(node, self._kind)

    def holds(self, node: cst.CSTNode, atom: str) -> bool:
        """True if an expression may hold such an object, and surely none of another library."""
        kind = self.kind(node)
        return atom in kind and FOREIGN not in kind

    @property
    def applications(self) -> list[cst.Call]:
        """Returns all calls of a method named `apply_gradient`."""
        return [call for call in self.facts.calls if method_call(call)[1] == "apply_gradient"]

    @property
    def constructions(self) -> list[tuple[cst.Call, Entry]]:
        """Returns all calls of flax.optim's own classes, each with the entry of its class."""
        calls = [(call, self.names.entry(call.func)) for call in self.facts.calls]
        return [(call, entry) for call, entry in calls if entry is not None]

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
                name == f"{OPTIM}.MultiOptimizer" or shared_name(name) in self.project.own_groups
            ),
        )

    def _derives(
        self, node: cst.ClassDef, is_one: Callable[[cst.BaseExpression, str], bool]
    ) -> bool:
        """True if some base of a class is one, by the expression and its imported name."""
        for base in (value for arg in node.bases for value in self.aliases(arg.value)):
            if is_one(base, self.names.of(base) or ""):
                return True
            if isinstance(base, cst.Name):
                parents = [assignment.node for assignment in self.names.assignments(base)]
                if any(
                    isinstance(p, cst.ClassDef) and p is not node and self._derives(p, is_one)
                    for p in parents
                ):
                    return True
        return False

    def aliases(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        """An expression, and the values of the variable or class attribute that it is."""
        values: list[cst.BaseExpression] = []
        waiting = [node]
        while waiting:
            value = waiting.pop()
            if value in values:
                continue
            values.append(value)
            if isinstance(value, cst.Name):
                waiting += self.assigned_to(value)
            elif isinstance(value, cst.Attribute) and self.names.of(value) is None:
                name = value.attr.value
                waiting += [v for field, v in self.facts.class_attributes if field == name]
            elif isinstance(value, cst.IfExp):
                waiting += [value.body, value.orelse]
        return values

    @functools.cached_property
    def bases(self) -> frozenset[cst.BaseExpression]:
        """The expressions that classes derive from, those behind an alias included."""
        args = (arg for c in self.facts.classes for arg in c.bases)
        return frozenset(value for arg in args for value in self.aliases(arg.value))

    def is_own_definition(self, name: str) -> bool:
        """True if an imported name is a definition class of another file of the project."""
        return shared_name(name) in self.project.definitions

    def is_plain_name(self, node: cst.BaseExpression) -> bool:
        """True if an expression is a name that is not imported, such as that of a builtin."""
        return isinstance(node, cst.Name) and self.names.of(node) is None

    def makes_own_definition(self, call: cst.Call) -> bool:
        """True if a call makes an instance of a definition class of the user's own."""
        if self.is_own_definition(self.names.of(call.func) or ""):
            return True
        classes = self._classes_called(call)
        return bool(classes) and all(node in self.legacy_classes for node in classes)

    def makes_own_groups(self, call: cst.Call) -> bool:
        """True if it makes one of a class of the user's own that derives from MultiOptimizer."""
        if self.imported_function(call) in self.project.own_groups:
            return True
        classes = self._classes_called(call)
        return bool(classes) and all(self.is_groups(node) for node in classes)

    def _classes_called(self, call: cst.Call) -> list[cst.ClassDef]:
        if not isinstance(call.func, cst.Name):
            return []
        nodes = [assignment.node for assignment in self.names.assignments(call.func)]
        return [node for node in nodes if isinstance(node, cst.ClassDef)]

    def _defines_apply_gradient(self, node: cst.ClassDef) -> bool:
        methods = [s.name.value for s in node.body.body if isinstance(s, cst.FunctionDef)]
        return "apply_gradient" in methods and not self.legacy_base(node)

    def imported_function(self, call: cst.Call) -> str | None:
        """Returns the imported name of the called function, if another file defines it."""
        name = self.names.of(call.func)
        if name is None or name.startswith(("jax.", "flax.")):
            return None
        return shared_name(name)

    def function_name(self, function: Callable_) -> str:
        """Returns the name by which other files refer to a function."""
        return f"{self.key}.{getattr(function, 'name', cst.Name('_')).value}"

    def share_arguments(self, call: cst.Call) -> None:
        """Notes the arguments of a function for the file that defines it."""
        name = self.imported_function(call)
        for index, arg in enumerate(call.args if name is not None else ()):
            if arg.star:
                break
            kind = portable(self.kind(arg.value))
            if kind:
                passed = self.shared.argument_kinds.setdefault(name or "", {})
                key = keyword_of(arg) or index
                passed[key] = join_kinds([passed.get(key, NOTHING), kind])

    def mark(self, marked: set[cst.CSTNode], node: cst.CSTNode) -> None:
        """Adds a node to `external` or `legacy`."""
        if node not in marked:
            marked.add(node)
            self._cells.change_all()

    def note_array_target(self) -> None:
        """Notes that some optimizer's target is an array by itself."""
        if not self._array_target:
            self._array_target = True
            self._cells.change_all()

    def assigned_to(
        self, node: cst.Name, *, within_tuples: bool = False
    ) -> list[cst.BaseExpression]:
        """Returns all values assigned to a variable."""
        key = self._key(node)
        return [
            value
            for target, value in self.facts.assignments
            for name in (names_bound(target) if within_tuples else [target])
            if isinstance(name, cst.Name) and name.value == node.value and self._key(name) == key
        ]

    def from_unknown(self, node: cst.CSTNode) -> bool:
        """True if a variable is made by calling an unknown class."""
        if not isinstance(node, cst.Name):
            return self.names.of(node) is not None
        if node.value in ("self", "cls") or self.names.of(node) is not None:
            return True
        return any(map(self._is_unknown_instance, self.assigned_to(node)))

    def assign(self, target: cst.CSTNode, kind: Kind) -> None:
        """Adds to the kind of a target."""
        if not kind:
            return
        if isinstance(target, cst.Name):
            key = self._key(target)
            if key is not None:
                self._cells.add(self._cells.variables, key, kind)
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
            self._cells.add(self.fields, name, kind)

    def field_kind(self, name: str) -> Kind:
        """Returns the kind of fields of a name, in this file or another one of the project."""
        kind = self._cells.read(self.fields, name)
        return join_kinds([kind, self.project.fields.get(name, NOTHING)])

    def assign_parameter(self, function: Callable_, parameter: cst.Param, kind: Kind) -> None:
        """Adds to the kind of a function's parameter."""
        scope = self.scopes.get(function.body)
        if kind and scope is not None:
            self._cells.add(self._cells.variables, (id(scope), parameter.name.value), kind)

    def parameter_kind(self, function: Callable_, parameter: cst.Param) -> Kind:
        """Returns the kind of a function's parameter."""
        scope = self.scopes.get(function.body)
        return self._cells.variables.get((id(scope), parameter.name.value), NOTHING)

    def return_kind(self, function: cst.CSTNode) -> Kind:
        """Returns the kind of the result of a function of this module."""
        return self._cells.read(self._cells.results, id(function))

    def variables(self) -> dict[str, Kind]:
        """Returns the kinds of the module's variables, by their names for other files."""
        top = id(self.scopes[self.module])
        cells = self._cells.variables.items()
        kinds = {n: portable(kind) - {ARRAY, FOREIGN} for (s, n), kind in cells if s == top}
        return {f"{self.key}.{name}": kind for name, kind in kinds.items() if kind}

    def imported_name(self, node: cst.CSTNode) -> str | None:
        """Returns the name that an expression was imported as; None for a part of a known value."""
        is_part = isinstance(node, cst.Attribute) and self.kind(node.value) - {CLASS, FOREIGN}
        return None if is_part else self.names.of(node)

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
                kinds = [*map(self._element_kind, node.elements)]
                if any(isinstance(e, cst.StarredElement) for e in node.elements):
                    return items(kinds) if all(kinds) else NOTHING
                return frozenset([Several(tuple(kinds))])
            case cst.List() | cst.Set() | cst.Dict():
                return items(map(self._element_kind, node.elements))
            case cst.ListComp() | cst.SetComp() | cst.GeneratorExp():
                return items([self.kind(node.elt)])
            case cst.DictComp():
                return items([self.kind(node.value)])
            case cst.Subscript():
                inside = item(self.kind(node.value), _number(index_of(node)))
                # What the rule for hyper-parameters writes for own groups.
                is_list = HYPER_PARAMS in inside and text_of(index_of(node)) == "hyper_params"
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

    def _element_kind(self, element: cst.BaseElement | cst.BaseDictElement) -> Kind:
        kind = self.kind(element.value)
        starred = isinstance(element, cst.StarredElement | cst.StarredDictElement)
        return item(kind) if starred else kind

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
        if key is not None:
            kinds.append(self._cells.read(self._cells.variables, key))
        return join_kinds(kinds)

    def _import_kind(self, node: cst.CSTNode, name: str) -> Kind:
        if self.names.entry(node) is not None:
            return only(CLASS)
        if self.is_own_definition(name):
            return only(CLASS)
        if imports.is_foreign(name):
            return only(FOREIGN)
        home, _, last = name.rpartition(".")
        of_value = home.rpartition(".")[2] not in self.project.modules and any(
            part in self.project.modules for part in home.split(".")
        )  # a field of a class or an object of another file
        field = self.project.fields.get(last, NOTHING) if of_value else NOTHING
        return self.project.values.get(shared_name(name), field)

    def _attribute_kind(self, node: cst.Attribute) -> Kind:
        imported = self.imported_name(node)
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
        in_module = self._cells.read(self.fields, attribute)
        by_name = join_kinds([self.field_kind(attribute), *methods])
        by_its_class = join_kinds(self.kind(v) for v in self._set_by_its_class(node, base) or ())
        if not self._follows_foreign:
            self._holds_back_foreign |= FOREIGN in by_name
            by_name = join_kinds([by_name - {FOREIGN}, by_its_class])
        return _drop_conflicts(by_its_class or in_module, by_name)

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


def _number(node: cst.BaseExpression | None) -> int | None:
    """Returns the integer that is written out, or None."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        number = _number(node.expression)
        return None if number is None else -number
    return int(node.value) if isinstance(node, cst.Integer) and node.value.isdigit() else None


def _drop_conflicts(evidence: Kind, kind: Kind) -> Kind:
    """Returns the kinds put into fields of a name in other scopes."""
    ours = only(OPTIMIZER) | only(DEFINITION)
    if evidence & ours and FOREIGN not in evidence:
        return kind - {FOREIGN}
    return kind - ours if FOREIGN in evidence and not evidence & ours else kind
