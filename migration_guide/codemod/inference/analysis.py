"""Finds the expressions of a module that hold an optimizer, a definition or a part of one.

Names are followed through assignments, parameters, returns, fields, containers and the function
transformations of JAX, without regard to the order of statements, until nothing new is found.
Fields are known by name alone: `state.optimizer` is an optimizer wherever one was put into a field
of that name.
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from migration_guide.codemod.inference import arguments, legacy_arguments
from migration_guide.codemod.inference.calls import annotation_kind, call_kind
from migration_guide.codemod.inference.exports import module_exports
from migration_guide.codemod.inference.expressions import Expressions
from migration_guide.codemod.inference.facts import is_property, parameters
from migration_guide.codemod.inference.kinds import NOTHING, Kind, item, join_kinds
from migration_guide.codemod.inference.project import Project, changed_names, merge_projects
from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.bindings import Scope
from migration_guide.codemod.reading.tree import dotted_name, walk

_WORD = re.compile(r"\w+")
_ROUNDS = 20  # kinds only grow, and programs settle in two to five


class Analysis(Expressions):
    """Kinds of the expressions of one module, inferred."""

    def __init__(self, module: cst.Module, project: Project, path: Path = Path()):
        self.path = path
        self.key = path.parent.name if path.stem == "__init__" else path.stem
        super().__init__(module, project)
        self._given = project
        self._infer()

    def infer(self, project: Project) -> None:
        """Infers all kinds again, if other files say something else about what this one names."""
        changed = changed_names(self._given, project)
        self._given = project
        if self._has_star or not changed.isdisjoint(self._concerns):
            self.reset(project)
            self._infer()
        elif self.trains_with_jax:
            self.project = project
            self.program = merge_projects([project, self.shared])

    @functools.cached_property
    def _concerns(self) -> set[str]:
        """All names in the module and words in its strings; facts that concern it without one."""
        nodes = list(walk(self.module))
        texts = " ".join(n.value for n in nodes if isinstance(n, cst.SimpleString))
        facts = {"own_apply_gradient"} if self.uses_optim else {"own_apply_gradient", "uses_optim"}
        names = {n.value for n in nodes if isinstance(n, cst.Name)}
        return facts | names | set(_WORD.findall(texts))

    @functools.cached_property
    def _has_star(self) -> bool:
        """True if the module has names of others that it does not write: of `import *`."""
        return any(imports.star(node) for node in self.facts.imports)

    def line(self, node: cst.CSTNode) -> int:
        """The line on which a node begins, from 1."""
        return self._positions[node].start.line

    def has_line(self, node: cst.CSTNode) -> bool:
        """True if a node belongs to the module."""
        return node in self._positions

    @functools.cached_property
    def _positions(self) -> Mapping[cst.CSTNode, CodeRange]:
        return MetadataWrapper(self.module, unsafe_skip_copy=True).resolve(PositionProvider)

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
            for function in self.facts.functions:
                arguments.assign_decorated(self, function)
            for call in self.facts.calls:
                arguments.assign_arguments(self, call)
            if not self._changed:
                self._memo.clear()
                arguments.learn(self, self.applications)
                legacy_arguments.keep(self)
            if not self._changed and self._follows_foreign:
                break
            self._follows_foreign |= not self._changed
        self._memo.clear()
        self.shared = module_exports(self)
        self.program = merge_projects([self.project, self.shared])

    def _infer_functions(self) -> None:
        for node in self.facts.annotated:
            kind = annotation_kind(self, node.annotation.annotation)
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
                    kind = annotation_kind(self, parameter.annotation.annotation)
                    self.assign_parameter(function, parameter, kind)
            kinds = [self.kind(value) for value in self.facts.returns[function]]
            if isinstance(function, cst.FunctionDef) and function.returns is not None:
                kinds.append(annotation_kind(self, function.returns.annotation))
            old = self._returns.get(function, NOTHING)
            self._returns[function] = self._add_kinds(old, join_kinds(kinds))
            if isinstance(function, cst.FunctionDef) and is_property(function):
                self.assign_field(function.name.value, self._returns[function])

    def _call_kind(self, node: cst.Call) -> Kind:
        return call_kind(self, node)

    def is_used(self, name: str) -> bool:
        """True if the module itself refers to a name."""
        return name in self._referenced_names

    @functools.cached_property
    def _referenced_names(self) -> set[str]:
        return {name.split(".")[0] for name in imports.references(self.module)}

    def read_of(self, node: cst.CSTNode) -> set[str]:
        """The attributes that are read of the variable that this is, `target` or `state.step`."""
        return self._reads.get((self.scopes.get(node), dotted_name(node) or ""), set())

    @functools.cached_property
    def _reads(self) -> dict[tuple[Scope | None, str], set[str]]:
        reads: dict[tuple[Scope | None, str], set[str]] = {}
        for attribute in self.facts.attributes:
            parts = (dotted_name(attribute) or "").split(".")
            for cut in range(1, len(parts)):
                key = self.scopes.get(attribute), ".".join(parts[:cut])
                reads.setdefault(key, set()).add(".".join(parts[cut:]))
        return reads
