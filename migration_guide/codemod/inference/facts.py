"""Facts read once from a module, before kinds are inferred: definitions, assignments, calls."""

from dataclasses import dataclass, field

import libcst as cst

from migration_guide.codemod.reading.tree import children, is_statement, last_name, text_of, walk

Callable_ = cst.FunctionDef | cst.Lambda


@dataclass
class Facts:
    """The places at which values move."""

    parents: dict[cst.CSTNode, cst.CSTNode] = field(default_factory=dict)

    assignments: list[tuple[cst.BaseExpression, cst.BaseExpression]] = field(default_factory=list)
    annotated: list[cst.AnnAssign] = field(default_factory=list)
    class_attributes: list[tuple[str, cst.BaseExpression]] = field(default_factory=list)
    of_self: dict[cst.CSTNode, cst.ClassDef] = field(default_factory=dict)
    set_on_self: dict[tuple[cst.ClassDef, str], list[cst.BaseExpression]] = field(
        default_factory=dict
    )
    loops: list[tuple[cst.BaseExpression, cst.BaseExpression]] = field(default_factory=list)
    calls: list[cst.Call] = field(default_factory=list)
    attributes: list[cst.Attribute] = field(default_factory=list)
    functions: list[Callable_] = field(default_factory=list)
    classes: list[cst.ClassDef] = field(default_factory=list)
    returns: dict[cst.CSTNode, list[cst.BaseExpression]] = field(default_factory=dict)
    methods: dict[str, list[cst.FunctionDef]] = field(default_factory=dict)
    owner: dict[cst.CSTNode, cst.ClassDef] = field(default_factory=dict)
    subscripts: list[cst.Subscript] = field(default_factory=list)
    commented: list[cst.BaseStatement] = field(default_factory=list)
    imports: list[cst.Import | cst.ImportFrom] = field(default_factory=list)
    exported: set[str] = field(default_factory=set)

    def __post_init__(self):
        self._within: list[cst.CSTNode] = []

    def collect(self, node: cst.CSTNode) -> None:
        """Collects the facts at a node and below it."""
        kind = type(node)
        if is_statement(kind):
            lines = getattr(node, "leading_lines", ())
            if any(line.comment is not None for line in lines):
                self.commented.append(node)  # type: ignore[arg-type]
        if kind in _LISTED:
            getattr(self, _LISTED[kind]).append(node)
        visit = _VISITS.get(kind)
        if visit is not None:
            visit(self, node)
        nested = kind is cst.FunctionDef or kind is cst.ClassDef
        if nested:
            self._within.append(node)
        for child in children(node):
            self.parents[child] = node
            self.collect(child)
        if nested:
            self._within.pop()

    def visit_Module(self, node: cst.Module) -> None:
        if any(line.comment is not None for line in node.header) and node.body:
            self.commented += [s for s in node.body[:1] if isinstance(s, cst.BaseStatement)]

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.functions.append(node)
        self.returns[node] = []
        owner = self._class_of_body()
        if owner is not None:
            self.methods.setdefault(node.name.value, []).append(node)
            self.owner[node] = owner

    def visit_Lambda(self, node: cst.Lambda) -> None:
        self.functions.append(node)
        self.returns[node] = [node.body]

    def visit_Return(self, node: cst.Return) -> None:
        if node.value is not None and self._within and self._within[-1] in self.returns:
            self.returns[self._within[-1]].append(node.value)

    def visit_Assign(self, node: cst.Assign) -> None:
        if not self._within and any(
            isinstance(t.target, cst.Name) and t.target.value == "__all__" for t in node.targets
        ):
            self.exported |= {text_of(inner) for inner in walk(node.value)} - {""}
        for target in node.targets:
            self.assignments.append((target.target, node.value))
            if self._class_of_body() is not None and isinstance(target.target, cst.Name):
                self.class_attributes.append((target.target.value, node.value))
            owner = self._class_of_self(target.target)
            if owner is not None and isinstance(target.target, cst.Attribute):
                values = self.set_on_self.setdefault((owner, target.target.attr.value), [])
                values.append(node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self.annotated.append(node)
        owner = self._class_of_body()
        if owner is not None:
            self.owner[node] = owner
            if node.value is not None and isinstance(node.target, cst.Name):
                self.class_attributes.append((node.target.value, node.value))

    def _class_of_self(self, node: cst.CSTNode) -> cst.ClassDef | None:
        if not isinstance(node, cst.Attribute) or not isinstance(node.value, cst.Name):
            return None
        classes = [n for n in self._within if isinstance(n, cst.ClassDef)]
        return classes[-1] if classes and node.value.value == "self" else None

    def _class_of_body(self) -> cst.ClassDef | None:
        """The class in whose body the walk is, outside of its methods."""
        innermost = self._within[-1] if self._within else None
        return innermost if isinstance(innermost, cst.ClassDef) else None

    def visit_AugAssign(self, node: cst.AugAssign | cst.NamedExpr) -> None:
        self.assignments.append((node.target, node.value))

    def visit_For(self, node: cst.For | cst.CompFor) -> None:
        self.loops.append((node.target, node.iter))

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self.attributes.append(node)
        owner = self._class_of_self(node)
        if owner is not None:
            self.of_self[node] = owner

    def visit_WithItem(self, node: cst.WithItem) -> None:
        if node.asname is not None:
            self.assignments.append((node.asname.name, node.item))


_VISITS = {
    getattr(cst, name.removeprefix("visit_")): visit
    for name, visit in vars(Facts).items()
    if name.startswith("visit_")
} | {cst.CompFor: Facts.visit_For, cst.NamedExpr: Facts.visit_AugAssign}
# Classes of nodes of which all are listed, each in the attribute that it names.
_LISTED = {
    cst.Call: "calls",
    cst.ClassDef: "classes",
    cst.Import: "imports",
    cst.ImportFrom: "imports",
    cst.Subscript: "subscripts",
}


def parameters(node: Callable_) -> list[cst.Param]:
    """Those that can be given by position, in order, then the keyword-only ones."""
    p = node.params
    return [*p.posonly_params, *p.params, *p.kwonly_params]


def is_property(node: cst.FunctionDef) -> bool:
    """True if a method is read as an attribute."""
    return any(
        last_name(decorator.decorator) in ("cached_property", "property")
        for decorator in node.decorators
    )


def fields(node: cst.ClassDef) -> list[str]:
    """Names of a dataclass's fields, in order."""
    names = []
    for line in node.body.body:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(statement, cst.AnnAssign) and isinstance(statement.target, cst.Name):
                names.append(statement.target.value)
    return names
