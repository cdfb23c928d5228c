"""One case as plain data, from which the page, JUnit's XML and the terminal are written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from equivalence_tests.compare.judgement import Judgement
from equivalence_tests.pair.report import Report
from equivalence_tests.plot import figure, loss_figure
from equivalence_tests.suite.case import Result
from optax_bridge.correspondence import Claim, Verdict
from optax_bridge.correspondence.claim import PROVED_FOR

ERROR, NO_RECIPE = "error", "no such recipe"


class Difference(str):
    """A difference in words, of something that took no steps: no error."""


@dataclass(frozen=True)
class Item:
    """One case."""

    id: str
    row: str
    column: str
    outcome: str
    is_as_claimed: bool
    title: str
    headline: str
    group: str = ""
    seconds: float = 0.0
    failure: str = ""
    claims: bool = True
    about: Sequence[str] = ()
    why: str = ""
    after_poison: str = ""
    pictures: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


def of_result(result: Result) -> Item:
    """A result of the suite."""
    case, claim, judgement = result.case, result.claim, result.judgement
    facts, pictures = {}, []
    outcome = NO_RECIPE if judgement is None else judgement.verdict.value
    if result.failed:
        outcome = ERROR
    if claim is not None:
        ulp = claim.measured_ulp
        measured = "" if ulp is None else f"; in the suite's own runs {ulp:g} at most"
        facts["claimed"] = claim_text(claim) + measured
    if result.losses is not None:
        pictures += loss_figure(*result.losses, str(case))
    if judgement is not None:
        facts |= _facts(judgement)
        pictures += figure(judgement, str(case))
    if result.proved:
        facts["proved"] = f"{result.proved}, for {PROVED_FOR}"
    if result.note and judgement is not None:
        facts["note"] = result.note
    about = [case.recipe, case.problem]
    if not case.column.startswith(case.recipe):
        about.append(case.column)
    if case.rate != "constant":
        about.append(f"rate {case.rate}")
    line = result.note if result.failed else f"{outcome}: {result.note}"
    return Item(
        id=str(case),
        row=case.entry,
        column=case.column,
        outcome=outcome,
        is_as_claimed=result.held,
        title=result.settings,
        headline=line if judgement is None else judgement.headline,
        group=f"optax_bridge.check.{case.entry}",
        seconds=result.seconds,
        failure="" if result.held else "; ".join(broken_lines(result)),
        about=tuple(dict.fromkeys(about)),
        why="" if claim is None or outcome == "identical" else claim.why,
        after_poison="" if judgement is None else judgement.after_poison,
        pictures=pictures,
        facts=facts | {"id": str(case), "seconds": f"{result.seconds:.2f}"},
        sources={"legacy": result.settings, case.recipe: result.source or "(no source form)"},
    )


def of_report(name: str, report: Report, why: str = "", group: str = "") -> Item:
    """A report of two sides; `why` is what explains a difference, where that is known."""
    judgement = report.judgement
    loop = "each side its own" if report.closed_loop else "as given"
    facts = {
        **_facts(judgement),
        "compared": report.compared,
        "steps": str(report.steps),
        "parameters": report.about_shapes,
        "gradients": report.tried or loop,
    }
    if report.about_states:
        facts["states"] = report.about_states
    is_same = report.verdict is not Verdict.DIFFERENT
    sides = zip(("left", "right"), report.names, report.sources, strict=True)
    return Item(
        id=name,
        row=report.names[0],
        column=report.names[1],
        outcome=report.verdict.value,
        is_as_claimed=is_same,
        title=name,
        headline=judgement.headline,
        group=group,
        failure="" if is_same else str(report),
        claims=False,
        about=(f"{report.steps} steps", f"{judgement.comparison.leaves} tensors"),
        why=why,
        after_poison=judgement.after_poison,
        pictures=figure(judgement, name),
        facts=facts,
        sources={f"{side}: {name}": source for side, name, source in sides},
    )


def of_message(name: str, message: str, group: str = "") -> Item:
    """The reason why there is no report: an error, or a difference of what took no steps."""
    is_result = isinstance(message, Difference)
    return Item(
        id=name,
        row=name,
        column="as restored" if is_result else "not compared",
        outcome=Verdict.DIFFERENT.value if is_result else ERROR,
        is_as_claimed=False,
        title=name,
        headline=message,
        group=group,
        failure=message,
        claims=False,
    )


def claim_text(claim: Claim) -> str:
    """A claim in words."""
    bound = "" if claim.ulp is None else f", at most {claim.ulp:g} ULP in 100 steps"
    return f"{claim.verdict.value}{bound}"


def broken_lines(result: Result) -> list[str]:
    """Returns lines on a claim that did not hold: the claim, the difference and its nature."""
    lines, judgement = [], result.judgement
    if result.failed:
        lines = [result.note]
    elif judgement is not None and result.claim is not None:
        lines = [
            f"claimed: {claim_text(result.claim)}",
            f"found: {judgement.headline}; first {judgement.comparison.first}",
            *filter(None, [judgement.after_poison]),
            f"nature: {judgement.explanation}",
        ]
    return lines if result.proof_held else [*lines, f"proved: {result.proved}"]


def _facts(judgement: Judgement) -> dict[str, str]:
    """The facts of a comparison."""
    comparison = judgement.comparison
    if comparison.first is None:
        return {"compared": f"{comparison.leaves} tensors, the same to the bit"}
    return {
        "first difference": str(comparison.first),
        "distances (ULP)": comparison.counts,
        "nature": judgement.explanation,
    }
