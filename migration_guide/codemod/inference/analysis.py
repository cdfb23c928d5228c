"""Finds the expressions of a module that hold an optimizer, a definition or a part of one.

Names are followed through assignments, parameters, returns, fields, containers and the function
transformations of JAX, without regard to the order of statements, until nothing new is found.
Fields are known by name alone: `state.optimizer` is an optimizer wherever one was put into a field
of that name.
"""

import functools
import itertools
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
    """Kinds of the expressions of one module, which `infer` infers."""

    def __init__(self, module: cst.Module, path: Path = Path()):
        self.path = path
        self.key = path.parent.name if path.stem == "__init__" else path.stem
        super().__init__(module)
        self._facts_of_others: Project | None = None

    def infer(self, project: Project) -> None:
        """Infers all kinds, unless nothing that the module names has changed in other files."""
        previous, self._facts_of_others = self._facts_of_others, project
        if (
            previous is None
            or self._has_star
            or not changed_names(previous, project).isdisjoint(self._concerns)
        ):
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
        """The line of a node, from 1; that of the string of a node made from its text."""
        statement = node
        while (above := self.parents.get(statement, self.module)) is not self.module:
            statement = above
        if statement not in self._positions:
            assert isinstance(statement, cst.SimpleStatementLine | cst.BaseCompoundStatement)
            wrapper = MetadataWrapper(cst.Module([statement]), unsafe_skip_copy=True)
            self._positions[statement] = wrapper.resolve(PositionProvider)
        positions = self._positions[statement]
        while node not in positions:
            node = self.parents[node]
        return self._lines_above[statement] + positions[node].start.line

    @functools.cached_property
    def _positions(self) -> dict[cst.CSTNode, Mapping[cst.CSTNode, CodeRange]]:
        """Statement of the module -> the places of its nodes, as if it stood alone."""
        return {}

    @functools.cached_property
    def _lines_above(self) -> dict[cst.CSTNode, int]:
        body = self.module.body
        counts = (self.module.code_for_node(line).count("\n") for line in body)
        above = itertools.accumulate(counts, initial=len(self.module.header))
        return dict(zip(body, above, strict=False))

    def _infer(self) -> None:
        self._read_annotations()
        for _ in range(_ROUNDS):
            self._cells.forget_changed()
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
            if not self._cells.has_changed:
                arguments.learn(self, self.applications)
                legacy_arguments.keep(self)
            if not self._cells.has_changed:
                if not self._holds_back_foreign:
                    break
                self._follows_foreign, self._holds_back_foreign = True, False
                self._cells.change_all()
        self._follows_foreign = True
        self._cells.forget_changed()
        for call in self.facts.calls:
            self.share_arguments(call)
        self.shared = module_exports(self)
        self.program = merge_projects([self.project, self.shared])

    def _read_annotations(self) -> None:
        """Takes the kinds of annotations and of the calls in other files, which never change."""
        for node in self.facts.annotated:
            kind = annotation_kind(self, node.annotation.annotation)
            self.assign(node.target, kind)
            if node in self.facts.owner and isinstance(node.target, cst.Name):
                self.assign_field(node.target.value, kind)
        for function in self.facts.functions:
            is_method = function in self.facts.owner
            argument_kinds = {} if is_method else self.project.argument_kinds
            passed = argument_kinds.get(self.function_name(function), {})
            for index, parameter in enumerate(parameters(function)):
                for key in (index, parameter.name.value):
                    self.assign_parameter(function, parameter, passed.get(key, NOTHING))
                if parameter.annotation is not None:
                    kind = annotation_kind(self, parameter.annotation.annotation)
                    self.assign_parameter(function, parameter, kind)
            if isinstance(function, cst.FunctionDef) and function.returns is not None:
                kind = annotation_kind(self, function.returns.annotation)
                self._cells.add(self._cells.results, id(function), kind)

    def _infer_functions(self) -> None:
        for node in self.facts.annotated:
            if node.value is not None:
                self.assign(node.target, self.kind(node.value))
        for function in self.facts.functions:
            for parameter in parameters(function):
                if parameter.default is not None:
                    self.assign_parameter(function, parameter, self.kind(parameter.default))
            kinds = [self.kind(value) for value in self.facts.returns[function]]
            self._cells.add(self._cells.results, id(function), join_kinds(kinds))
            if isinstance(function, cst.FunctionDef) and is_property(function):
                self.assign_field(function.name.value, self.return_kind(function))

    def _call_kind(self, node: cst.Call) -> Kind:
        return call_kind(self, node)

    def is_used(self, name: str) -> bool:
        """True if the module itself refers to a name."""
        return name in self.referenced_roots

    @functools.cached_property
    def references(self) -> frozenset[str]:
        """The dotted names that the module uses outside of imports."""
        return frozenset(imports.references(self.module))

    @functools.cached_property
    def referenced_roots(self) -> frozenset[str]:
        """The names with which these begin."""
        return frozenset(name.split(".")[0] for name in self.references)

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
