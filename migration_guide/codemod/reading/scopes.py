"""Finds the scope of each node of a module, and the names that each scope binds.

LibCST has them as well, with every access of every name: that takes half as long again as all else
that `migrate` does.
"""

import libcst as cst

from migration_guide.codemod.reading.bindings import Scope
from migration_guide.codemod.reading.imports import ImportNode, aliases
from migration_guide.codemod.reading.tree import children


def scopes(module: cst.Module) -> dict[cst.CSTNode, Scope]:
    """Node -> the scope that it is in, of all nodes but those of the layout."""
    visitor = _Visitor()
    visitor.visit(module, Scope())
    return visitor.known


class _Visitor:
    def __init__(self):
        self.known: dict[cst.CSTNode, Scope] = {}

    def visit(self, node: cst.CSTNode, scope: Scope) -> None:
        self.known[node] = scope
        special = _SPECIAL.get(type(node))
        if special is None:
            for child in children(node):
                self.visit(child, scope)
        else:
            special(self, node, scope)

    def all(self, node: cst.CSTNode, scope: Scope) -> None:
        for child in children(node):
            self.visit(child, scope)

    def target(self, node: cst.CSTNode, scope: Scope) -> None:
        """Binds the names that a target assigns."""
        if isinstance(node, cst.Name):
            scope.bind(node.value, node)
        elif isinstance(node, cst.Tuple | cst.List):
            for element in node.elements:
                self.target(element.value, scope)

    def function(self, node: cst.FunctionDef, scope: Scope) -> None:
        scope.bind(node.name.value, node)
        self.known[node.name] = scope
        for decorator in node.decorators:
            self.visit(decorator, scope)
        if node.returns is not None:
            self.visit(node.returns, scope)
        inner = Scope(scope)
        self.parameters(node.params, scope, inner)
        self.visit(node.body, inner)

    def function_of_one(self, node: cst.Lambda, scope: Scope) -> None:
        inner = Scope(scope)
        self.parameters(node.params, scope, inner)
        self.visit(node.body, inner)

    def parameters(self, node: cst.Parameters, outer: Scope, inner: Scope) -> None:
        self.known[node] = inner
        for child in children(node):
            self.known[child] = inner
            if isinstance(child, cst.Param):
                inner.bind(child.name.value, child)
                self.known[child.name] = inner
                for value in (child.annotation, child.default):
                    if value is not None:
                        self.visit(value, outer)

    def definition(self, node: cst.ClassDef, scope: Scope) -> None:
        scope.bind(node.name.value, node)
        self.known[node.name] = scope
        for decorator in node.decorators:
            self.visit(decorator, scope)
        for argument in (*node.bases, *node.keywords):
            self.visit(argument, scope)
        self.visit(node.body, Scope(scope, is_class=True))

    def comprehension(self, node: cst.BaseComp, scope: Scope) -> None:
        inner = Scope(scope, is_comprehension=True)
        loop: cst.CompFor | None = node.for_in
        self.visit(loop.iter, scope)
        first = True
        while loop is not None:
            self.known[loop] = inner
            self.target(loop.target, inner)
            self.visit(loop.target, inner)
            if not first:
                self.visit(loop.iter, inner)
            for condition in loop.ifs:
                self.visit(condition, inner)
            loop, first = loop.inner_for_in, False
        for child in children(node):
            if not isinstance(child, cst.CompFor):
                self.visit(child, inner)

    def assigning(self, node: cst.CSTNode, scope: Scope) -> None:
        for name in ("target", "name"):
            target = getattr(node, name, None)
            if isinstance(target, cst.CSTNode):
                self.target(target, scope)
        self.all(node, scope)

    def named_expression(self, node: cst.NamedExpr, scope: Scope) -> None:
        home = scope
        while home.is_comprehension and home.parent is not None:
            home = home.parent
        self.target(node.target, home)
        self.all(node, scope)

    def declare(self, node: cst.Global | cst.Nonlocal, scope: Scope) -> None:
        for item in node.names:
            home = scope.module
            if isinstance(node, cst.Nonlocal) and scope.parent is not None:
                assignments = scope.parent.find(item.name.value)
                home = assignments[0].scope if assignments else scope.module
            if home is not scope:
                scope.elsewhere[item.name.value] = home

    def bind_import(self, node: ImportNode, scope: Scope) -> None:
        for name, bound, is_dotted in aliases(node):
            root = bound.split(".")[0]
            scope.bind(root, node, root if is_dotted else name)


_SPECIAL = {
    cst.FunctionDef: _Visitor.function,
    cst.Lambda: _Visitor.function_of_one,
    cst.ClassDef: _Visitor.definition,
    cst.ListComp: _Visitor.comprehension,
    cst.SetComp: _Visitor.comprehension,
    cst.DictComp: _Visitor.comprehension,
    cst.GeneratorExp: _Visitor.comprehension,
    cst.AssignTarget: _Visitor.assigning,
    cst.AnnAssign: _Visitor.assigning,
    cst.AugAssign: _Visitor.assigning,
    cst.For: _Visitor.assigning,
    cst.AsName: _Visitor.assigning,
    cst.NamedExpr: _Visitor.named_expression,
    cst.MatchAs: _Visitor.assigning,
    cst.MatchStar: _Visitor.assigning,
    cst.Global: _Visitor.declare,
    cst.Nonlocal: _Visitor.declare,
    cst.Import: _Visitor.bind_import,
    cst.ImportFrom: _Visitor.bind_import,
}
