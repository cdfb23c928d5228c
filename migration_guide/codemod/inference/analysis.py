"""Finds the expressions of a module that hold an optimizer, a definition or a part of one.

Names are followed through assignments, parameters, returns, fields, containers and the function
transformations of JAX, without regard to the order of statements, until nothing new is found.
Fields are known by name alone: `state.optimizer` is an optimizer wherever one was put into a field
of that name.
"""

import functools
from collections.abc import Collection
from pathlib import Path
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from migration_guide.codemod.inference import flow, legacy_arguments, use
from migration_guide.codemod.inference.expressions import Expressions
from migration_guide.codemod.inference.facts import Callable_, is_property, parameters
from migration_guide.codemod.inference.kinds import (
    CLASS,
    FOREIGN,
    HYPER_PARAMS,
    NOTHING,
    OPTIMIZER,
    Kind,
    item,
    join_kinds,
)
from migration_guide.codemod.inference.project import Project, portable
from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.names import OPTIM, dotted_name
from migration_guide.codemod.reading.tree import names_bound

_ROUNDS = 20  # kinds only grow, and programs settle in two to five


class Analysis(Expressions):
    """Kinds of the expressions of one module, inferred.

    Args:
      module: the parsed module.
      project: facts from other files.
      path: of the file, from which others know it.
    """

    def __init__(self, module: cst.Module, project: Project, path: Path = Path()):
        super().__init__(module, project)
        self.path = path
        self.stem = path.stem
        self.key = path.parent.name if path.stem == "__init__" else path.stem
        self.infer(project)

    def infer(self, project: Project) -> None:
        """Resets all kinds to the facts from other files."""
        self.reset(project)
        self._argument_kinds: dict[str, dict[int | str, Kind]] = {}
        self._expected: dict[str, str] = {}
        self.legacy_arguments: dict[str, frozenset[int | str]] = {}
        self.legacy_results: set[str] = set()
        self.legacy_fields: set[str] = set()
        self.external: set[cst.CSTNode] = set()
        self.legacy: set[cst.CSTNode] = set()
        self.legacy_classes = [c for c in self.facts.classes if self.legacy_base(c)]
        self.own_classes = [c for c in self.facts.classes if self._defines_apply_gradient(c)]
        self._infer()

    def line(self, node: cst.CSTNode) -> int:
        """The line on which a node begins, from 1."""
        return self._positions[node].start.line

    def has_line(self, node: cst.CSTNode) -> bool:
        """True if a node belongs to the module."""
        return node in self._positions

    @functools.cached_property
    def _positions(self) -> Any:
        return MetadataWrapper(self.module, unsafe_skip_copy=True).resolve(PositionProvider)

    def holds(self, node: cst.CSTNode, atom: str) -> bool:
        """True if an expression may hold such an object, and surely none of another library."""
        kind = self.kind(node)
        return atom in kind and FOREIGN not in kind

    @property
    def uses_optim(self) -> bool:
        """True if this file imports flax.optim, or refers to it through flax."""
        return self._uses_optim

    @functools.cached_property
    def _uses_optim(self) -> bool:
        return any(imports.mentions(node, OPTIM) for node in self.facts.imports) or any(
            (self.names.of(node) or "").startswith(OPTIM) for node in self.facts.attributes
        )

    @property
    def applications(self) -> list[cst.Call]:
        """Returns all calls of a method named `apply_gradient`."""
        return [
            c
            for c in self.facts.calls
            if isinstance(c.func, cst.Attribute) and c.func.attr.value == "apply_gradient"
        ]

    @property
    def rate_per_call(self) -> bool:
        """True if some step overrides hyper-parameters, or something reads them."""
        steps = [
            c
            for c in self.facts.calls
            if isinstance(c.func, cst.Attribute)
            and c.func.attr.value in ("apply_gradient", "optimize")
            and (c.func.attr.value == "apply_gradient" or self.holds(c.func.value, OPTIMIZER))
        ]
        return any(len(call.args) > 1 for call in steps) or any(
            self.holds(a, HYPER_PARAMS) for a in self.facts.attributes
        )

    @property
    def overridden_names(self) -> frozenset[str]:
        """The hyper-parameters that some step gives; `**` where it cannot be told which."""
        overridden = set()
        for call in self.facts.calls:
            if not isinstance(call.func, cst.Attribute) or not self.holds(
                call.func.value, OPTIMIZER
            ):
                continue
            if call.func.attr.value in ("apply_gradient", "optimize"):
                rest = call.args[1:] if call.args and not call.args[0].keyword else call.args
                names = [a.keyword.value if a.keyword is not None else "**" for a in rest]
                overridden |= set(names) - {"grads", "loss_fn"}
        return frozenset(overridden)

    @property
    def calls_classes(self) -> bool:
        """True if some call makes a definition of a class that is chosen at run time."""
        return any(
            CLASS in self.kind(call.func)
            and self.names.entry(call.func) is None
            and not self.makes_own_definition(call)
            for call in self.facts.calls
        )

    def _infer(self) -> None:
        for _ in range(_ROUNDS):
            self._changed = False
            self._memo.clear()
            self._infer_functions()
            for target, value in self.facts.assignments:
                self.assign(target, self.kind(value))
            for name, value in self.facts.class_attributes:
                self.assign_field(name, self.kind(value))
            for target, iterable in self.facts.loops:
                self.assign(target, item(self.kind(iterable)))
            for call in self.facts.calls:
                flow.arguments(self, call)
            if not self._changed:
                self._memo.clear()
                use.learn(self, self.applications)
                legacy_arguments.keep(self)
            if not self._changed and self._follows_foreign:
                break
            self._follows_foreign |= not self._changed
        self._memo.clear()

    def _infer_functions(self) -> None:
        for node in self.facts.annotated:
            kind = flow.annotation(self, node.annotation.annotation)
            self.assign(node.target, kind)
            if node.value is not None:
                self.assign(node.target, self.kind(node.value))
            if node in self.facts.owner and isinstance(node.target, cst.Name):
                self.assign_field(node.target.value, kind)
        for function in self.facts.functions:
            own_name = self.function_name(function)
            is_method = function in self.facts.owner
            passed = {} if is_method else self.project.argument_kinds.get(own_name, {})
            for index, parameter in enumerate(parameters(function)):
                for key in (index, parameter.name.value):
                    self.assign_parameter(function, parameter, passed.get(key, NOTHING))
                if parameter.default is not None:
                    self.assign_parameter(function, parameter, self.kind(parameter.default))
                if parameter.annotation is not None:
                    kind = flow.annotation(self, parameter.annotation.annotation)
                    self.assign_parameter(function, parameter, kind)
            kinds = [self.kind(value) for value in self.facts.returns[function]]
            if isinstance(function, cst.FunctionDef) and function.returns is not None:
                kinds.append(flow.annotation(self, function.returns.annotation))
            old = self._returns.get(function, NOTHING)
            self._returns[function] = self._add_kinds(old, join_kinds(kinds))
            if isinstance(function, cst.FunctionDef) and is_property(function):
                self.assign_field(function.name.value, self._returns[function])

    def _call_kind(self, node: cst.Call) -> Kind:
        return flow.call(self, node)

    def is_used(self, name: str) -> bool:
        """True if the module itself refers to a name."""
        return name in self._referenced_names

    @functools.cached_property
    def _referenced_names(self) -> set[str]:
        return {name.split(".")[0] for name in imports.references(self.module)}

    def from_unknown(self, node: cst.CSTNode) -> bool:
        """True if a variable is made by calling an unknown class."""
        if not isinstance(node, cst.Name):
            return self.names.of(node) is not None
        if node.value in ("self", "cls") or self.names.of(node) is not None:
            return True
        for target, value in self.facts.assignments:
            if (
                isinstance(target, cst.Name)
                and target.value == node.value
                and isinstance(value, cst.Call)
            ):
                if self._key(target) != self._key(node):
                    continue
                if self._is_unknown_instance(value):
                    return True
        return False

    def read_of(self, node: cst.CSTNode) -> set[str]:
        """The attributes that are read of the variable that this is, `target` or `state.step`."""
        return self._reads.get((self.scopes.get(node), dotted_name(node) or ""), set())

    @functools.cached_property
    def _reads(self) -> dict[tuple[Any, str], set[str]]:
        reads: dict[tuple[Any, str], set[str]] = {}
        for attribute in self.facts.attributes:
            parts = (dotted_name(attribute) or "").split(".")
            for cut in range(1, len(parts)):
                key = self.scopes.get(attribute), ".".join(parts[:cut])
                reads.setdefault(key, set()).add(".".join(parts[cut:]))
        return reads

    def give(self, call: cst.Call) -> None:
        """Notes the kind of an argument of another file's function."""
        name = self.imported_function(call)
        if name is None:
            return
        for index, arg in enumerate(call.args):
            if arg.star:
                break
            kind = portable(self.kind(arg.value))
            if kind:
                key = arg.keyword.value if arg.keyword is not None else index
                passed = self._argument_kinds.setdefault(name, {})
                passed[key] = join_kinds([passed.get(key, NOTHING), kind])

    @property
    def argument_kinds(self) -> dict[str, dict[int | str, Kind]]:
        """The kinds of the arguments of other files' functions."""
        return self._argument_kinds

    @property
    def expected(self) -> dict[str, str]:
        """The kinds that functions of other files must return."""
        return self._expected

    def mark(self, marked: set[cst.CSTNode], node: cst.CSTNode) -> None:
        """Adds a node to `external` or `legacy`."""
        if node not in marked:
            marked.add(node)
            self._changed = True

    def note_array_target(self) -> None:
        """Notes that some optimizer's target is an array by itself."""
        if not self._array_target:
            self._array_target = self._changed = True

    def expect(self, name: str, what: str) -> None:
        """Notes for other files what a function of theirs must return."""
        self._expected.setdefault(".".join(name.split(".")[-2:]), what)

    def imported_function(self, call: cst.Call) -> str | None:
        """Returns the imported name of the called function, if another file defines it."""
        name = self.names.of(call.func)
        if name is None or name.startswith(("jax.", "flax.")):
            return None
        return ".".join(name.split(".")[-2:])

    def demand_argument(self, function: Callable_, keys: Collection[int | str]) -> None:
        """Notes for other files what they give to a function of this one as legacy code."""
        name = self.function_name(function)
        self.legacy_arguments[name] = self.legacy_arguments.get(name, frozenset()) | set(keys)

    def demand_result(self, name: str) -> None:
        """Notes for other files that a function of theirs returns legacy code."""
        self.legacy_results.add(name)

    def demand_field(self, name: str) -> None:
        """Notes for other files that fields of a name hold legacy code."""
        self.legacy_fields.add(name)

    def function_name(self, function: Callable_) -> str:
        """Returns the name by which other files refer to a function."""
        return f"{self.key}.{getattr(function, 'name', cst.Name('_')).value}"

    def assigned_to(
        self, node: cst.Name, *, within_tuples: bool = False
    ) -> list[cst.BaseExpression]:
        """Returns all values assigned to a variable.

        Args:
          node: the variable.
          within_tuples: what is taken apart into several variables counts as well, as a whole.
        """
        key = self._key(node)
        return [
            value
            for target, value in self.facts.assignments
            for name in (names_bound(target) if within_tuples else [target])
            if isinstance(name, cst.Name) and name.value == node.value and self._key(name) == key
        ]

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
