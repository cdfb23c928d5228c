"""Names that JAX, Flax, Optax and NumPy have lost get their new names, or a comment.

Before:

    from jax import partial
    from jax.config import config
    from jax import linear_util
    x = np.zeros(3, np.float)
    config.enable_omnistaging()
    y = jnp.where(jnp.clip(x, a_max=1.0) > 0, x=x, y=0)
    z = jax.soft_pmap(f)(y)
    if jax.host_id() == 0: ...

After:

    import functools
    x = np.zeros(3, float)
    y = jnp.where(jnp.clip(x, max=1.0) > 0, x, 0)
    # optax-bridge: jax.soft_pmap is gone: jax 0.3.17 had it, 0.3.25 does not. What to do: ...
    z = jax.soft_pmap(f)(y)
    if jax.process_index() == 0: ...

Those names and their replacements are the inventory of `legacy_optim.gone`, made from
the releases. Names with a rule of their own are left to it.
"""

import itertools

import libcst as cst

from legacy_optim import gone
from legacy_optim.gone import remedies
from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.tree import dotted_name, keyword_of, root_name
from migration_guide.codemod.rules.dead_imports import is_no_module, is_tried
from migration_guide.codemod.writing.context import Context, Expression, Line, New

RUNS_AFTER = ("comments", "jax_ops")
IN_DEFINITIONS = True
# Modules whose names have new ones, each for itself.
_TAKEN_APART = frozenset(
    module
    for package in ("flax", "jax", "numpy", "optax", "orbax")
    for module in gone.answered_modules(package)
)
# What is left to a person is imported on, under its comment.
REMOVES = [n for n in gone.names() if n in _TAKEN_APART or getattr(gone.find(n), "new", None)]
REMOVES += [f"{module}.{n}" for module in _TAKEN_APART for n in gone.names_with_an_equal(module)]
REMOVES += ["jax.config"]  # an object today, which `import jax` brings
REMOVES += [*remedies.DEPRECATED, *remedies.WITHOUT_EFFECT]
# Modules and classes, of which a variable may hold one.
_OWNERS = frozenset(name.rpartition(".")[0] for name in gone.names())
# What has a new name in one of these is an object, and keeps its attributes: jax.config.update.
_HOMES = ("flax.jax_utils", "jax", "jax.nn", "jax.numpy", "jax.random", "jax.sharding")
# What `import jax` alone does not import.
_NOT_IMPORTED = (
    "flax.training",
    "jax.example_libraries",
    "jax.experimental",
    "jax.extend",
    "numpy.lib",
    "optax.contrib",
    "orbax.checkpoint",
)


def rewrite_reference(context: Context, original: Expression, updated: Expression) -> New:
    """A use of a name that is gone."""
    name = context.name(original)
    entry = _entry(context, name)
    if entry is None or _is_within_another(context, original):
        return None
    statement = context.parent(context.call_of(original) or original)
    if isinstance(statement, cst.Expr) and _is_without_effect(context, statement):
        return None
    new = entry.new
    is_alike = _goes_on_by_position(context, original, name)
    if new is None or not is_alike or not _can_be_written(context, new):
        context.by_hand(original, entry.message)
        return None
    module, _, last = new.rpartition(".")
    if module and module == name.rpartition(".")[0] and isinstance(updated, cst.Attribute):
        return updated.with_changes(attr=cst.Name(last))  # keeps `np.` and `jnp.`
    if module.startswith(_NOT_IMPORTED):
        context.needed.add(module)
        return cst.parse_expression(new)
    return context.reference(new) if module else cst.Name(new)


def rewrite_attribute(context: Context, original: cst.Attribute, updated: cst.Attribute) -> New:
    """A name in a module that a variable holds: `xnp = jax.numpy`, `xnp.product(y)`."""
    if not context.once(_module_variables) or context.name(original):
        return None
    name = _through_variable(context, original)
    entry = gone.find(name) if name else None
    if entry is None or gone.find(_through_variable(context, context.parent(original))) is not None:
        return None
    module, _, last = (entry.new or "").rpartition(".")
    if entry.new is not None and module == name.rpartition(".")[0]:
        return updated.with_changes(attr=cst.Name(last))
    context.by_hand(original, entry.message)
    return None


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """A keyword argument that is gone."""
    name = context.name(original.func)
    args = _by_position(gone.by_position(name), list(updated.args))
    for index, arg in enumerate(args):
        entry = gone.find_keyword(name, arg.keyword.value) if arg.keyword else None
        if entry is None:
            continue
        if entry.new is None:
            context.by_hand(original, entry.message)
        else:
            args[index] = args[index].with_changes(keyword=cst.Name(entry.new))
    changed = any(a is not b for a, b in zip(args, updated.args, strict=True))
    return updated.with_changes(args=args) if changed else None


def _by_position(names: tuple[str, ...], args: list[cst.Arg]) -> list[cst.Arg]:
    """Arguments, without the keywords of those that go by position alone today."""
    place = sum(arg.keyword is None for arg in args)
    if any(arg.star for arg in args) or not names[place:]:
        return args
    args, commas = list(args), [arg.comma for arg in args]
    for name in names[place:]:
        index = next((i for i, a in enumerate(args) if keyword_of(a) == name), None)
        if index is None:
            break
        arg = args.pop(index)
        args.insert(place, arg.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT))
        place += 1
    return [
        arg if arg.comma is comma else arg.with_changes(comma=comma)
        for arg, comma in zip(args, commas, strict=True)
    ]


def rewrite_statement(
    context: Context, original: Line, updated: Line
) -> Line | cst.FlattenSentinel[Line] | None:
    """Comments on imports of names without an equal; removes calls without effect."""
    for node in imports.made_by(original):
        entry = _entry(context, imports.star(node)) or _lost_module(context, node)
        if entry is not None:
            context.by_hand(original, entry.message)
        for name, _, _ in imports.aliases(node):
            # With a new name, or names below it that have some, it goes when its uses went.
            entry = _entry(context, name)
            is_done = name in (*_TAKEN_APART, *remedies.WITHOUT_EFFECT)
            if entry is not None and entry.new is None and not is_done:
                context.by_hand(original, entry.message)
    pairs = zip(original.body, updated.body, strict=True)
    body = [new for old, new in pairs if not _is_without_effect(context, old)]
    if not body:
        return cst.FlattenSentinel[Line]([])
    return updated.with_changes(body=body) if len(body) < len(updated.body) else None


def _is_without_effect(context: Context, node: cst.BaseSmallStatement) -> bool:
    """True if a statement on a line of its own calls a function that does nothing today."""
    call = node.value if isinstance(node, cst.Expr) else None
    if not isinstance(context.parent(node), Line):
        return False
    return isinstance(call, cst.Call) and context.name(call.func) in remedies.WITHOUT_EFFECT


def _lost_module(context: Context, node: imports.ImportNode) -> gone.Gone | None:
    """Returns the entry of a module that is an object today, where only a person can decide."""
    if isinstance(node, cst.ImportFrom):
        names = [name for name, _, _ in imports.aliases(node)]
        module = imports.star(node) or names[0].rpartition(".")[0]
        is_answered = all(name in context.removed for name in names)
        is_meant = imports.star(node) or not is_answered or is_tried(context, node)
        return gone.find_module(module) if is_meant and is_no_module(module) else None
    names = [name for name, _, _ in imports.aliases(node) if is_no_module(name)]
    is_bound = any(alias.asname for alias in node.names)
    return gone.find_module(names[0]) if names and (is_bound or is_tried(context, node)) else None


def _module_variables(context: Context) -> frozenset[str]:
    """Variables that are assigned a module or a class: `xnp` of `xnp = jax.numpy`."""
    return frozenset(
        target.value
        for target, value in context.analysis.facts.assignments
        if isinstance(target, cst.Name) and context.name(value) in _OWNERS
    )


def _through_variable(context: Context, node: cst.CSTNode | None) -> str:
    """The dotted name of a name in a module that a variable holds, or ""."""
    root, text = root_name(node), dotted_name(node)
    if root is None or text is None or root.value not in context.once(_module_variables):
        return ""
    modules = {context.name(value) for value in context.analysis.assigned_to(root)}
    return f"{modules.pop()}{text.removeprefix(root.value)}" if len(modules) == 1 else ""


def _entry(context: Context, name: str) -> gone.Gone | None:
    """The inventory's entry, unless a rule of its own is there for the name."""
    if name in remedies.DEPRECATED:
        return gone.Gone(name, "jax", "", "", remedies.DEPRECATED[name], "")
    entry = gone.find(name) if name and not _is_elsewhere(context, name) else None
    if entry is None or entry.new is not None:
        return entry
    owners = [gone.find(owner) for owner in _with_owners(name)]
    is_kept = any(o and (o.new or "").rpartition(".")[0] in _HOMES for o in owners)
    return None if is_kept else entry


def _is_elsewhere(context: Context, name: str) -> bool:
    """True if another rule rewrites a name, or the module that it is in."""
    return not context.answered.isdisjoint(_with_owners(name))


def _with_owners(name: str) -> list[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`."""
    return list(itertools.accumulate(name.split("."), "{}.{}".format))


def _is_within_another(context: Context, node: cst.BaseExpression) -> bool:
    """True if a longer name around it is gone as well: `jax.api` of `jax.api.jit`."""
    above = context.parent(node)
    return (
        isinstance(above, cst.Attribute)
        and above.value is node
        and _is_gone(context, context.name(above))
    )


def _is_gone(context: Context, name: str) -> bool:
    return name in context.answered or _entry(context, name) is not None


def _goes_on_by_position(context: Context, node: Expression, name: str) -> bool:
    """True if a function takes its positional arguments under its new name as it did."""
    most = gone.alike_by_position(name)
    if most is None:
        return True
    call = context.call_of(node)
    places = [arg for arg in call.args if arg.keyword is None] if call is not None else []
    is_shown = call is not None and not any(arg.star == "*" for arg in places)
    return is_shown and len([arg for arg in places if not arg.star]) <= most


def _can_be_written(context: Context, new: str) -> bool:
    """True if a builtin's name means the builtin in this file."""
    if "." in new:
        return True
    return all(new not in scope.bound for scope in set(context.analysis.scopes.values()))
