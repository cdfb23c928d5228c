"""Finds look-ups in a state dict by literal names."""

import libcst as cst

from migration_guide.codemod.inference.analysis import Analysis
from migration_guide.codemod.reading.tree import index_of, method_call, text_of, walk

_OF_AN_OPTIMIZER = {"", "target", "state", "step", "params", "opt_state"}


# In what is looked up, by which strings, and where.
Chain = tuple[cst.BaseExpression, list[str], cst.BaseExpression]


def chains(a: Analysis) -> list[Chain]:
    """Returns the longest lookups of the file."""
    results: list[Chain] = []
    for node in walk(a.module):
        if isinstance(node, cst.Comparison):
            results += [
                (target.comparator, [text_of(node.left)], node)
                for target in node.comparisons
                if isinstance(target.operator, cst.In | cst.NotIn)
            ]
            continue
        if not isinstance(node, cst.Subscript | cst.Call) or _looked_up(node) is None:
            continue
        above = a.parents.get(node)
        if isinstance(above, cst.Attribute):  # of `.get`
            above = a.parents.get(above)
        if isinstance(above, cst.Subscript | cst.Call):
            around = _looked_up(above)
            if around is not None and around[0] is node:
                continue
        keys: list[str] = []
        root: cst.BaseExpression = node
        while (looked_up := _looked_up(root)) is not None:
            root, key = looked_up
            keys.insert(0, key)
        results.append((root, keys, node))
    return results


def _looked_up(node: cst.BaseExpression) -> tuple[cst.BaseExpression, str] | None:
    """Returns the `x` and the name of `x["a"]`, `x.get("a")` or `x.pop("a")`; "" for no name."""
    if isinstance(node, cst.Subscript):
        return node.value, text_of(index_of(node))
    holder, method = method_call(node)
    if not isinstance(node, cst.Call) or holder is None or not node.args:
        return None
    is_lookup = method in ("get", "pop", "setdefault")
    return (holder, text_of(node.args[0].value)) if is_lookup else None


def without_taken(a: Analysis, saved: cst.BaseExpression, updated: cst.Arg) -> cst.Arg:
    """A state dict as an argument, without the entries that the program takes out itself."""
    if not isinstance(saved, cst.Name):
        return updated
    scope = a.scopes.get(saved)
    taken = {
        keys[0]
        for root, keys, _ in chains(a)
        if isinstance(root, cst.Name) and root.value == saved.value and a.scopes.get(root) is scope
    } - _OF_AN_OPTIMIZER
    if not taken:
        return updated
    names = sorted(taken)
    test = f"!= {names[0]!r}" if len(names) == 1 else f"not in {tuple(names)!r}"
    remaining = f"{{name: value for name, value in {saved.value}.items() if name {test}}}"
    return updated.with_changes(value=cst.parse_expression(remaining))
