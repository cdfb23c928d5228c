# pyright: strict
"""`--rename`: local variables named `optimizer` that hold a TrainState are called `state`."""

import libcst as cst

from migration_guide.codemod.context import Context
from migration_guide.codemod.imports import references
from migration_guide.codemod.kinds import DEFINITION

OLD, NEW = "optimizer", "state"


def renamed(context: Context, updated: cst.Module) -> tuple[cst.Module, int]:
    """The module with the variable renamed wherever it occurs, and how often.

    All or nothing: every variable of the name must hold an optimizer and nothing else, no scope may
    know the new name, and no call may use the old one as a keyword, which other files could do as
    well for a parameter.
    """
    names = _Names()
    context.analysis.module.visit(names)
    safe = (
        names.uses
        and not names.keywords
        and not names.fields
        and OLD not in context.analysis.project.keywords
        and NEW not in names.all
        and NEW not in references(updated)
        and all(
            context.is_optimizer(node) and DEFINITION not in context.analysis.kind(node)
            for node in names.uses
        )
    )
    if not safe:
        return updated, 0
    replacer = _Replacer()
    new = updated.visit(replacer)
    assert isinstance(new, cst.Module)
    return new, replacer.count


class _Names(cst.CSTVisitor):
    def __init__(self):
        super().__init__()
        self.uses: list[cst.Name] = []
        self.keywords = self.fields = False
        self.all: set[str] = set()

    def visit_Name(self, node: cst.Name) -> None:
        self.all.add(node.value)
        if node.value == OLD:
            self.uses.append(node)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        if node.keyword is not None and node.keyword.value == OLD:
            self.keywords = True
        node.value.visit(self)
        return False

    def visit_Param(self, node: cst.Param) -> bool:
        for part in (node.annotation, node.default):
            if part is not None:
                part.visit(self)
        node.name.visit(self)
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        for line in node.body.body:
            for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
                target = getattr(small, "target", None)
                if isinstance(target, cst.Name) and target.value == OLD:
                    self.fields = True


class _Replacer(cst.CSTTransformer):
    def __init__(self):
        super().__init__()
        self.count = 0

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.Attribute:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        if original_node.value != OLD:
            return updated_node
        self.count += 1
        return updated_node.with_changes(value=NEW)
