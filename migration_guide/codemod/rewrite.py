"""One module through all rules, and the checks without which nothing is written."""

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import libcst as cst

from legacy_optim.gone.usage import uses_gone_names
from migration_guide.codemod.inference import half_precision
from migration_guide.codemod.inference.analysis import Analysis
from migration_guide.codemod.inference.project import Project
from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.marks import line_map
from migration_guide.codemod.reading.names import OPTIM, dotted_name
from migration_guide.codemod.reading.source import TooLargeError, parse, undefined_names
from migration_guide.codemod.reading.tree import is_statement, transform, walk
from migration_guide.codemod.registry import HANDLERS, HANDLERS_OF, RULES, Rule
from migration_guide.codemod.results import Options, Restored, Rewritten
from migration_guide.codemod.writing import placement, public_optax, random_numbers
from migration_guide.codemod.writing.context import Context

_ROUNDS = 3  # a second one changes nothing, as a rule


_TOO_EARLY = (
    "the imports at the top import JAX, which the program did later: if it sets the environment or "
    "a flag before that, put them below it"
)


def rewrite(
    code: str,
    options: Options,
    project: Project | None = None,
    path: Path = Path(),
    analysis: Analysis | None = None,
    rules: Sequence[Rule] = RULES,
) -> Rewritten:
    """Applies the rules to a module's source."""
    project = project or Project(
        half_precision=half_precision.signs({path: code}), follows_arrays=options.optax_alone
    )
    try:
        analysis = analysis or Analysis(parse(code), project, path)
        new, context = _apply_rules(analysis, options, rules)
    except SyntaxError as error:
        problem = f"line {error.lineno}: {error.msg}" if error.lineno else error.msg
        return Rewritten(code, refused=f"not Python that can be read: {problem}")
    except RecursionError:
        return Rewritten(code, refused="nested too deeply to be read")
    except TooLargeError as error:
        return Rewritten(code, refused=str(error))
    messages, counts = context.messages(), Counter(context.counts)
    taken = sorted(name for name in context.needed if _is_taken(context, name))
    refused = f"the name {taken[0]!r} is something else here: rename it first" if taken else ""
    for _ in range(_ROUNDS):
        refused = refused or (_objection(code, new) if new != code else "")
        if refused or new == code or not _may_go_on(context, new):
            break
        again, later = _apply_rules(Analysis(parse(new), project, path), options, rules)
        if again == new:
            break
        message_texts = {message.text for message in messages}
        back = line_map(new, code)
        messages |= {
            dataclasses.replace(m, line=back(m.line)) for m in later.messages(but=message_texts)
        }
        counts += later.counts
        new = again
    else:
        refused = "a further run would change the result once more; please report this"
    listed = tuple(sorted(messages))
    if refused or new == code:
        return Rewritten(code, listed, refused=refused)
    compared = tuple(sorted(context.compared.items()))
    applied = tuple(sorted(counts.items()))
    return Rewritten(
        new, listed, applied, "", _restored_files(context), compared, context.for_float32
    )


def _restored_files(context: Context) -> tuple[Restored, ...]:
    """Returns the files that the module restores, with the recipe that was written."""
    recipe = "optax" if context.options.optax_alone else ""
    recipe = "exact" if context.recipes == {"exact"} else recipe
    return tuple(
        dataclasses.replace(checkpoint, recipe=recipe)
        for _, checkpoint in sorted(context.checkpoints.items())
    )


def _apply_rules(
    analysis: Analysis, options: Options, rules: Sequence[Rule]
) -> tuple[str, Context]:
    removed = frozenset(name for rule in rules for name in rule.removes)
    answered = frozenset(name for rule in rules for name in rule.answers_for)
    if analysis.names.unclear_star:
        options = dataclasses.replace(options, rules=frozenset({"comments"}))
    context = Context(
        analysis,
        options,
        is_optax_alone=options.optax_alone and public_optax.is_possible(analysis),
        program_leaves_some=options.optax_alone and public_optax.program_leaves_some(analysis),
        removed=removed,
        answered=answered,
    )
    context.list_earlier()
    dispatcher = _Dispatcher(context, rules)
    updated = transform(analysis.module, dispatcher.leave, _not_an_import)
    keeps_random_numbers = options.old_random_numbers and random_numbers.is_missing(updated)
    if keeps_random_numbers:
        context.needed.add("jax")
        context.counts["old_random_numbers"] += 1
    needed = [placement.Import(module) for module in context.needed]
    needed += [placement.Import(module, name) for module, name in context.named]
    updated = placement.with_imports(updated, needed, _old_import(context))
    if placement.comes_too_early(analysis.module, updated):
        context.note(analysis.module.body[0], _TOO_EARLY)
    for name, source in sorted(context.functions.items(), reverse=True):
        updated = placement.below_imports(updated, source, name)
    if keeps_random_numbers:
        updated = random_numbers.add(updated)
    for rule in rules:
        handler = rule.handlers.get("rewrite_module")
        if handler is None or not _is_selected(options, rule.name):
            continue
        new = handler(context, analysis.module, updated)
        if new is not None:
            context.counts[rule.name] += 1
            updated = new
    return updated.code, context


def _may_go_on(context: Context, code: str) -> bool:
    """True if a second round may find something in the result that the first did not."""
    analysis = context.analysis
    top = analysis.scopes[analysis.module]
    roots = {name.split(".")[0] for name in context.needed}
    new = {root for root in roots if not top.find(root)}
    before = {name.split(".")[0] for name in imports.references(analysis.module)}
    remaining = any(by_hand for _, _, by_hand in context.remarks)
    if remaining or "legacy_optim" in context.needed or new & before:
        return True
    return bool(uses_gone_names(code))


def _old_import(context: Context) -> int | None:
    """Returns the position of the import of flax.optim, unless lines are added before it."""
    for index, line in enumerate(context.analysis.module.body):
        if context.comments.get(line) and not isinstance(line, cst.SimpleStatementLine):
            return None
        for node in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(node, cst.Import | cst.ImportFrom) and imports.mentions(node, OPTIM):
                return index
    return None


def _objection(code: str, new: str) -> str:
    """Returns the reason why a result must not be written, or ""."""
    try:
        missing = undefined_names(new) - undefined_names(code)
    except SyntaxError as error:
        return (
            f"the result would not be Python (line {error.lineno}: {error.msg}); please report this"
        )
    if missing:
        return f"the result would use {min(missing)!r}, which nothing defines; please report this"
    return ""


def _is_taken(context: Context, name: str) -> bool:
    """True if some scope binds a module's name to something else."""
    root = name.split(".")[0]
    for scope in set(context.analysis.scopes.values()):
        for assignment in scope.bound.get(root, ()):
            if assignment.imported:
                if assignment.imported != root:
                    return True
            elif not context.analysis.names.is_fallback(assignment):
                return True
    return False


def _is_selected(options: Options, name: str) -> bool:
    return options.rules is None or name in options.rules


def _not_an_import(node: cst.CSTNode) -> bool:
    return not isinstance(node, cst.Import | cst.ImportFrom)


class _Dispatcher:
    """Hands every node to the rules that may want it."""

    def __init__(self, context: Context, rules: Sequence[Rule]):
        self._context = context
        wanted = [rule for rule in rules if _is_selected(context.options, rule.name)]
        self._rules = {kind: [r for r in wanted if kind in r.handlers] for kind in HANDLERS}
        # Statement -> references to flax.optim in it that no rule took so far, and what they are in
        # the result.
        self._pending: dict[cst.CSTNode, list[tuple[cst.CSTNode, cst.CSTNode]]] = {}
        self._all_rules = len(wanted) == len(rules)

    def leave(self, original: Any, updated: Any) -> Any:
        """Returns the node that the rules make of a node, with their comments above it."""
        if self._context.is_skipped(original):
            return updated
        kind = type(original)
        if kind is cst.SimpleString and self._context.in_annotation(original):
            return self._rewrite_annotation(original, updated)
        node = updated
        if kind in HANDLERS_OF:
            node = self._through(HANDLERS_OF[kind], original, node)
        if node is updated and self._is_use(original):
            node = self._reference(original, node)
        if is_statement(kind):
            if isinstance(node, cst.BaseStatement):
                node = self._context.without_settled(original, node)
            self._comment_remaining(original, node)
            comments = self._context.comments.get(original)
            return _add_comments(node, comments) if comments else node
        return node

    def _comment_remaining(self, original: cst.BaseStatement, updated: Any) -> None:
        """A comment for names of flax.optim that no rule took, so that none is left in silence."""
        pending = self._pending.pop(original, ())
        if not pending or self._context.comments.get(original):
            return
        roots = updated if isinstance(updated, cst.FlattenSentinel) else [updated]
        remaining = {id(node) for root in roots for node in walk(root)}
        for reference, result in pending:
            if id(result) in remaining:
                name = self._context.name(reference)
                self._context.by_hand(
                    reference,
                    f"{name} has no equal here: keep it with legacy_optim in place of flax.optim, "
                    "or write its value",
                )
                return

    def _reference(self, original: Any, updated: Any) -> Any:
        node = self._through("rewrite_reference", original, updated)
        if node is updated and self._all_rules and self._context.legacy(original):
            self._pending.setdefault(self._context.statement(original), []).append((original, node))
        return node

    def _through(self, kind: str, original: Any, updated: Any) -> Any:
        # What a definition of the user's own does inside stays legacy code.
        inside = self._context.legacy_class(original) is not None
        for rule in self._rules[kind]:
            if inside and not rule.in_definitions:
                continue
            if not isinstance(updated, type(original)):
                break
            new = rule.handlers[kind](self._context, original, updated)
            if new is not None:
                self._context.counts[rule.name] += 1
                if kind == "rewrite_reference" and original.lpar and not new.lpar:
                    new = new.with_changes(lpar=original.lpar, rpar=original.rpar)
                updated = new
        return updated

    def _is_use(self, node: cst.CSTNode) -> bool:
        """True if a node refers to something imported: a chain of attributes, or a variable."""
        if not isinstance(node, cst.Name):
            return isinstance(node, cst.Attribute) and bool(self._context.name(node))
        above = self._context.parent(node)
        if isinstance(above, cst.Attribute) and above.attr is node:
            return False
        if isinstance(above, cst.Arg) and above.keyword is node:
            return False
        if isinstance(above, cst.Param | cst.FunctionDef | cst.ClassDef) and above.name is node:
            return False
        binds = cst.ImportAlias | cst.AsName | cst.NameItem | cst.AssignTarget
        return not isinstance(above, binds) and bool(self._context.name(node))

    def _rewrite_annotation(self, original: cst.SimpleString, updated: Any) -> Any:
        """`'optim.Optimizer'` as an annotation: every dotted name in it that a rule knows."""

        def replacement(match: re.Match[str]) -> str:
            try:
                node = cst.parse_expression(match.group())
            except cst.ParserSyntaxError:
                return match.group()
            self._context.analysis.parents[node] = self._context.analysis.parents[original]
            new = (
                self._through("rewrite_reference", node, node) if self._context.name(node) else node
            )
            return dotted_name(new) or match.group()

        text = re.sub(r"[A-Za-z_]\w*(?:\.\w+)*", replacement, original.value)
        return updated if text == original.value else updated.with_changes(value=text)


def _add_comments(node: Any, comments: list[str]) -> Any:
    """A statement with comments above it."""
    lines = [cst.EmptyLine(comment=cst.Comment(text)) for text in dict.fromkeys(comments)]
    if isinstance(node, cst.FlattenSentinel):
        if not node:
            return node
        first, *rest = node
        return cst.FlattenSentinel([_add_comments(first, comments), *rest])
    return node.with_changes(leading_lines=[*node.leading_lines, *lines])
