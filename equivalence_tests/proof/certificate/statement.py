"""The parts that a certificate has to have: verdicts, the sides' scope, a whole induction."""

import contextlib
from collections.abc import Iterator
from typing import Any

from equivalence_tests.proof.certificate.normal_forms import Case
from equivalence_tests.proof.certificate.programs import Programs
from equivalence_tests.proof.interpreter.balls import NoRule, Unclear

VERSION = 4  # of certificates
VERDICTS = ("identical", "equal over the reals", "not decided", "different")
PROVED = VERDICTS[:2]
COVERAGES = ("any", "0 to 5 axes", "given")


class CertificateError(ValueError):
    """A certificate that what the programs compute does not bear out."""


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Within it, what a certificate lacks, or has of another kind, is an error of it."""
    try:
        yield
    except (CertificateError, Unclear):
        raise
    except NoRule as error:
        raise CertificateError(f"not checked: {error}") from error
    except KeyError as error:
        raise CertificateError(f"malformed: there is no {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CertificateError(f"malformed: {type(error).__name__}: {error}") from error
    except ArithmeticError as error:
        raise CertificateError(f"malformed: {error}") from error


def require(condition: bool, message: str) -> None:
    """Raises CertificateError with a message unless a condition holds."""
    if not condition:
        raise CertificateError(message)


@reading()
def check_header(certificate: Case) -> None:
    """Raises unless the verdict is that of the weakest case, and the sides can be traced."""
    version = certificate["version"]
    require(version == VERSION, f"version: expected {VERSION}, found {version}; prove it again")
    require(len(certificate["names"]) == 2, "malformed: names of other than two sides")
    weakest = max(VERDICTS.index(case["verdict"]) for case in certificate["cases"])
    same = certificate["verdict"] == VERDICTS[weakest]
    require(same, "the verdict is not that of the weakest case")
    for case in certificate["cases"]:
        fixed = {name: float(number) for name, number in case["fixed"].items()}
        require(fixed == case["fixed"], "malformed: a setting that is no number")
        if case["verdict"] == "different":
            dict(case["counterexample"]["hyper_params"])
    coverage = certificate["scope"]["coverage"]
    require(coverage in COVERAGES, f"scope: no such coverage: {coverage!r}")


@reading()
def check_scope(certificate: Case, case: Case, programs: Programs) -> None:
    """Raises unless the scope is that of the parameters, and no wider than the proof."""
    scope, cases = certificate["scope"], certificate["cases"]
    leaves = list(zip(programs.paths, programs.shapes, strict=True))
    expected = {path: [str(leaf.dtype), list(leaf.shape)] for path, leaf in leaves}
    actual = {path: [dtype, scope["shapes"].get(path)] for path, dtype in scope["leaves"].items()}
    require(
        actual == expected,
        f"scope: the certificate is for {actual}, the parameters are {expected}. Check it with "
        "the parameters of its proof",
    )
    general = all(row.get("general", True) for row in case["obligations"])
    is_narrow = scope["coverage"] == "given"
    require(general or is_narrow, "scope: its proof is for the shapes given alone")
    free = {*programs.numbers, *case["fixed"]} - {*scope["fixed"]}
    require({*scope["settings"]} == free, f"scope: the settings are {', '.join(sorted(free))}")
    for name, number in (pair for side in programs.sides for pair in side.comparisons):
        fixed = {**case["fixed"], name: number}
        require(any(fixed == each["fixed"] for each in cases), f"no case for {name} = {number}")


@reading()
def check_induction(case: Case, programs: Programs) -> None:
    """Raises unless every parameter has obligations for the start and for each related state."""
    wheres: list[Any] = [state["where"] for state in case["states"]]
    require(bool(wheres), "a proof without states: it is no induction")
    for row in case["obligations"]:
        fits = row["when"] != "step" or row.get("where", []) in wheres
        require(fits, f"{row['leaf']}: no state of the counters is {row.get('where', [])}")
        closed = row["level"] in ("identical", "reals")
        require(closed, "a proof with obligations that are open")
    expected = [("start", []), *(("step", where) for where in wheres)]
    expected += [("first step", [])] if case["after_first"] is not None else []
    rows = [row for row in case["obligations"] if row.get("params")]
    rows_of = [(row["leaf"], row["when"], row.get("where", [])) for row in rows]
    for path in programs.paths:
        for when, where in expected:
            require((path, when, where) in rows_of, f"{path}: no obligation for the {when} {where}")
    exact = case["verdict"] != "identical" or all(row["level"] == "identical" for row in rows)
    require(exact, "identical, by obligations that are equal over the reals")
