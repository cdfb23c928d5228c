"""One module through all rules, and the checks without which nothing is written."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from legacy_optim.gone.usage import uses_gone_names
from migration_guide.codemod.dispatch import Dispatcher
from migration_guide.codemod.inference import half_precision
from migration_guide.codemod.inference.analysis import Analysis
from migration_guide.codemod.inference.project import Project
from migration_guide.codemod.reading.marks import line_map
from migration_guide.codemod.reading.source import TooLargeError, parse, undefined_names
from migration_guide.codemod.registry import RULES, Rule
from migration_guide.codemod.results import Options, Restored, Rewritten
from migration_guide.codemod.writing.context import Context
from migration_guide.codemod.writing.place import place

_ROUNDS = 3  # a second one changes nothing, as a rule


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
        analysis = analysis or _analysis(code, project, path)
        new, context = _apply_rules(analysis, options, rules)
    except SyntaxError as error:
        problem = f"line {error.lineno}: {error.msg}" if error.lineno else error.msg
        return Rewritten(code, refused=f"cannot be parsed as Python: {problem}")
    except RecursionError:
        return Rewritten(code, refused="nested too deeply to be read")
    except TooLargeError as error:
        return Rewritten(code, refused=str(error))
    messages, counts = context.messages(), Counter(context.counts)
    taken = sorted(name for name in context.needed if _is_taken(context, name))
    refused = f"the file uses the name {taken[0]!r} itself: rename it first" if taken else ""
    for _ in range(_ROUNDS):
        refused = refused or (_objection(code, new) if new != code else "")
        if refused or new == code or not _may_go_on(context, new):
            break
        again, later = _apply_rules(_analysis(new, project, path), options, rules)
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
        refused = "another run would change the result again; please report this"
    listed = tuple(sorted(messages))
    if refused or new == code:
        return Rewritten(code, listed, refused=refused)
    return Rewritten(
        new,
        listed,
        tuple(sorted(counts.items())),
        checkpoints=_restored_files(context),
        compared=tuple(sorted(context.compared.items())),
        for_float32=context.for_float32,
        rate_at_steps=context.rate_at_steps,
        legacy_names=tuple(sorted(context.legacy_names)),
    )


def _analysis(code: str, project: Project, path: Path) -> Analysis:
    analysis = Analysis(parse(code), path)
    analysis.infer(project)
    return analysis


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
    context = Context(analysis, options, removed, answered)
    context.list_earlier()
    updated = place(context, Dispatcher(context, rules).rewrite())
    for rule in rules:
        handler = rule.handlers.get("rewrite_module")
        if handler is None or not options.selects(rule.name):
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
    remaining = any(by_hand for _, _, by_hand in context.remarks)
    if remaining or "legacy_optim" in context.needed or new & analysis.referenced_roots:
        return True
    return uses_gone_names(code)


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
