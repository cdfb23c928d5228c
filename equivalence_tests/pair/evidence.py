"""The runs of two optimizers and the proof, combined into one verdict."""

import textwrap
from dataclasses import dataclass
from typing import Any

from equivalence_tests.pair.report import Report
from equivalence_tests.proof.errors import ProofError
from equivalence_tests.proof.prover import prove_equivalence
from equivalence_tests.proof.result import DIFFERENT, IDENTICAL, REALS, Proof
from equivalence_tests.proof.scope import ANY, ANY_SIZE
from equivalence_tests.sides.adapt import SideLike
from equivalence_tests.sides.side import Side
from optax_bridge.correspondence import Verdict

_PROVED = (IDENTICAL, REALS)


@dataclass(frozen=True)
class Evidence:
    """The runs of two sides and the proof, with their common verdict."""

    runs: Report
    proof: Proof | None
    unproved: str = ""
    explanation: str = ""

    @property
    def verdict(self) -> Verdict:
        """The weaker of the runs' verdict and, if it decides, the proof's."""
        proved = None if self.proof is None else self.proof.verdict
        if self.runs.verdict is Verdict.DIFFERENT or proved == DIFFERENT:
            return Verdict.DIFFERENT
        return Verdict.ROUNDING if proved == REALS else self.runs.verdict

    @property
    def disagreement(self) -> str:
        """The reason why the runs and the proof say different things; empty where they do not."""
        if self.proof is None:
            return ""
        ran, proved = self.runs.verdict, self.proof.verdict
        if proved == DIFFERENT and ran is not Verdict.DIFFERENT:
            return (
                "the runs did not cover the input on which the proof shows a difference: it lies "
                "beyond their steps, gradients or shapes"
            )
        if proved == IDENTICAL and ran is Verdict.ROUNDING:
            return (
                "both programs are the same to the bit, but XLA compiles them into loops that "
                "round differently"
            )
        if proved not in _PROVED or ran is not Verdict.DIFFERENT:
            return ""
        shapes = "" if self.proof.general else " for the shapes that it names"
        if proved == REALS:
            return (
                f"the proof covers exact numbers{shapes}: the runs show rounding beyond the "
                "bound, an overflow, or a number that is not finite"
            )
        return f"the proof covers the traced programs{shapes}; the runs show more"

    @property
    def headline(self) -> str:
        """The verdict and its grounds in one line."""
        ran, proved = self.runs.verdict, "" if self.proof is None else self.proof.verdict
        if self.verdict is Verdict.DIFFERENT:
            by = ["in the runs"] * (ran is Verdict.DIFFERENT) + ["by proof"] * (proved == DIFFERENT)
            text = " and ".join(by)
        else:
            shown = "the same bits" if ran is Verdict.IDENTICAL else "no other difference"
            where = ", where no parameter moves" if self.runs.nothing_moves else ""
            text = f"{shown} in the runs{where}{self._scope()}"
        return f"{self.verdict.value}: {text}"

    def _scope(self) -> str:
        """Returns the verdict of the proof and its scope, as the end of the headline."""
        if self.proof is None or self.proof.verdict not in _PROVED:
            return "; not proved"
        scope = self.proof.scope
        dtypes = " and ".join(dict.fromkeys(scope.leaves.values()))
        shapes = {ANY: "", ANY_SIZE: f" of {ANY_SIZE}"}.get(
            scope.coverage, " of these shapes alone"
        )
        return (
            f", and proved {self.proof.verdict} for all inputs in {dtypes}{shapes}, for the leaves "
            "and under the assumptions that the proof lists"
        )

    def about_proof(self) -> str:
        """The proof as text, or why it is missing."""
        return f"not tried: {self.unproved}" if self.proof is None else str(self.proof)

    def __str__(self) -> str:
        lines = [self.headline, *filter(None, [self.explanation])]
        if self.disagreement:
            lines.append(f"runs and proof disagree: {self.disagreement}")
        return "\n".join([*lines, f"runs: {self.runs}", f"proof: {self.about_proof()}"])

    def as_dict(self) -> dict[str, object]:
        """Returns everything as plain data."""
        return {
            "verdict": self.verdict.value,
            "headline": self.headline,
            "names": list(self.runs.names),
            "explanation": self.explanation,
            "disagreement": self.disagreement,
            "runs": self.runs.as_dict(),
            "proof": None if self.proof is None else self.proof.as_dict(),
            "unproved": self.unproved,
        }


def prove_sides(*sides: SideLike, **options: Any) -> tuple[Proof | None, str]:
    """Returns the proof of two sides, or None and the reason why none can be attempted."""
    if options.get("hyper_params") is None:
        for side in sides:
            if isinstance(side, Side) and not side.compiled:  # of another framework
                return None, f"{side.name} runs outside JAX, which cannot trace it"
    try:
        return prove_equivalence(*sides, **options), ""
    except ProofError as error:
        return None, textwrap.shorten(str(error), 500)
