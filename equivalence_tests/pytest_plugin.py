"""A pytest plugin: the fixture `assert_equivalent`, and options on where to run and report.

Installed with the package, so it is loaded wherever pytest runs: it imports nothing of JAX until a
test asks for the fixture.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from equivalence_tests.output_files import why_not_writable, write_text

if TYPE_CHECKING:
    from equivalence_tests.pair.report import Report
    from equivalence_tests.proof.result import Proof
    from equivalence_tests.sides.adapt import SideLike
    from optax_bridge.metadata.trees import Params

# Test -> its row of report.json, and its case on the page, as plain data.
_REPORTS = pytest.StashKey[dict[str, dict[str, Any]]]()
_OUTPUT = "equivalence_reports"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("equivalence", "equivalence of optimizers")
    group.addoption(
        "--equivalence-platform",
        choices=("cpu", "gpu", "tpu"),
        help="the platform of assert_equivalent; without such a device its tests are skipped",
    )
    group.addoption(
        "--equivalence-report",
        metavar="DIR",
        type=Path,
        help="write index.html and report.json with every comparison into this folder",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Checks before the first test that the report can be written."""
    config.stash[_REPORTS] = {}
    folder = config.getoption("--equivalence-report")
    if folder is None:
        return
    if why := why_not_writable(folder):
        raise pytest.UsageError(f"--equivalence-report {why}")


@pytest.fixture
def assert_equivalent(request: pytest.FixtureRequest) -> "Callable[..., Report]":
    """Runs two optimizers side by side and fails if they differ.

        def test_my_adam(assert_equivalent):
            assert_equivalent(optax.adam(1e-3), my_adam(1e-3), params)

    It takes the arguments of `equivalence_tests.check_equivalence`, and `at_most="identical"` if
    rounding is too much. It returns the report.
    """
    import jax  # pytest starts without it, so that a project may set its flags

    from equivalence_tests import EquivalenceError, Verdict, check_equivalence
    from equivalence_tests.environment import first_device
    from equivalence_tests.pair.explanation import of_objects

    platform = request.config.getoption("--equivalence-platform")
    device = first_device(platform)
    if device is None:
        pytest.skip(f"--equivalence-platform {platform}: this machine has no such device")

    def check(
        left: "SideLike",
        right: "SideLike",
        params: "Params",
        *,
        at_most: Verdict | str = Verdict.ROUNDING,
        **options: Any,
    ) -> "Report":
        __tracebackhide__ = True
        enough = _at_most(getattr(at_most, "value", at_most), [each.value for each in Verdict])
        report, stopped, why = None, "", ""
        with jax.default_device(device):
            try:
                report = check_equivalence(left, right, params, **options)
            except EquivalenceError as error:
                stopped = str(error)
            if report is not None and report.verdict is Verdict.DIFFERENT:
                why = of_objects(left, right, params, options, report.steps) or ""
        if report is None:  # outside of the handler, or pytest shows both errors
            _note(request, {"verdict": "error", "error": stopped}, stopped)
            pytest.fail(f"not compared: {stopped}", pytrace=False)
        _note(request, {**report.as_dict(), "explanation": str(why)}, report, str(why))
        if report.verdict.value not in enough:
            explained = f"\n  {why}" if why else ""
            has_page = request.config.getoption("--equivalence-report")
            more = "" if has_page else "\n  with --equivalence-report DIR its plot is on a page"
            pytest.fail(
                f"{report.headline}; expected {enough[-1]} at most\n{report}{explained}{more}",
                False,
            )
        return report

    return check


def _at_most(verdict: object, verdicts: Sequence[str]) -> Sequence[str]:
    """Returns the verdicts up to the one that is enough; refuses another word."""
    if verdict not in verdicts:
        raise ValueError(f"at_most is {verdict!r}; expected one of {', '.join(verdicts)}")
    return verdicts[: verdicts.index(str(verdict)) + 1]


def _note(
    request: pytest.FixtureRequest, row: dict[str, object], result: "Report | str", why: str = ""
) -> None:
    """Keeps a result for the report, where one is wanted."""
    if request.config.getoption("--equivalence-report") is None:
        return
    from equivalence_tests.report.item import of_message, of_report  # JAX, see above

    reports = request.config.stash[_REPORTS]
    name, number = request.node.nodeid, 2
    while name in reports:  # a test may compare several pairs
        name, number = f"{request.node.nodeid} ({number})", number + 1
    item = of_message(name, result) if isinstance(result, str) else of_report(name, result, why)
    reports[name] = {"row": {"test": name, **row}, "item": asdict(item)}


@pytest.fixture
def assert_proved(request: pytest.FixtureRequest) -> "Callable[..., Proof]":
    """Proves that two optimizers are the same for all inputs, and fails if it cannot.

        def test_my_adam(assert_proved):
            assert_proved(my_adam(1e-3), optax.adam(1e-3), params)

    It takes the arguments of `equivalence_tests.prove_equivalence`, and `at_most="identical"` if
    equal over the reals is not enough. It returns the proof; pytest's own reports have the verdict
    and its scope as the test's property `proved`.
    """
    from equivalence_tests import EquivalenceError, prove_equivalence  # JAX, see above

    def prove(
        left: "SideLike",
        right: "SideLike",
        params: "Params",
        *,
        at_most: str = "equal over the reals",
        **options: Any,
    ) -> "Proof":
        __tracebackhide__ = True
        enough = _at_most(at_most, ["identical", "equal over the reals"])
        proof, stopped = None, ""
        try:
            proof = prove_equivalence(left, right, params, **options)
        except EquivalenceError as error:
            stopped = str(error)
        if proof is None:
            pytest.fail(f"not proved: {stopped}", pytrace=False)
        if proof.verdict not in enough:
            pytest.fail(f"{proof}\nexpected {at_most} at most", pytrace=False)
        # As record_property does, but that warns where there is JUnit's XML.
        request.node.user_properties.append(("proved", f"{proof.verdict}, {proof.scope}"))
        return proof

    return prove


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the report; a worker of pytest-xdist hands its part to the process that does."""
    config = session.config
    folder, reports = config.getoption("--equivalence-report"), config.stash[_REPORTS]
    if folder is None:
        return
    handed_over = getattr(config, "workeroutput", None)
    if handed_over is not None:
        handed_over[_OUTPUT] = json.dumps(reports)  # it takes Python's own types alone
        return
    rows = [report["row"] for report in reports.values()]
    write_text(folder / "report.json", json.dumps(rows, indent=1) + "\n")
    from equivalence_tests.report import html  # JAX, see above
    from equivalence_tests.report.item import Item

    items = [Item(**report["item"]) for report in reports.values()]
    environment = next((row["environment"] for row in rows if "environment" in row), {})
    html.write(folder / html.NAME, "Equivalence", items, environment)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes what a worker of pytest-xdist hands over."""
    reports = getattr(node, "workeroutput", {}).get(_OUTPUT, "{}")  # none of one that crashed
    node.config.stash[_REPORTS].update(json.loads(reports))
