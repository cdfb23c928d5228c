# pyright: strict
"""The result of a proof."""

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import jax

from equivalence_tests.proof.counterexample.example import Counterexample
from equivalence_tests.proof.dtypes import Json
from equivalence_tests.proof.induction.equality import Level
from equivalence_tests.proof.induction.induction import Induction
from equivalence_tests.proof.induction.world import Obligation
from equivalence_tests.proof.reading.sides import MakeSide
from equivalence_tests.proof.scope import ANY, ANY_SIZE, GIVEN, Scope, coverage

IDENTICAL, REALS, DIFFERENT, UNDECIDED = (
    "identical",
    "equal over the reals",
    "different",
    "not decided",
)
VERDICTS = (IDENTICAL, REALS, UNDECIDED, DIFFERENT)
# Assumed of every program: nothing watches for it.
PURE = "functions are pure, as JAX asks"
_MOST_SHOWN = 12
_MOST_LOOKS = 4
_OF_LEVEL = {Level.IDENTICAL: IDENTICAL, Level.REALS: REALS, Level.UNKNOWN: UNDECIDED}


@dataclass(frozen=True)
class CaseProof:
    """The proof for one case of a program's decisions in Python."""

    fixed: Mapping[str, float]
    excluded: tuple[str, ...]
    induction: Induction
    counterexample: Counterexample | None = None
    stopped: str = ""

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        return DIFFERENT if self.counterexample else _OF_LEVEL[self.induction.level]

    @property
    def open(self) -> list[Obligation]:
        """The obligations that could not be proved."""
        return [o for o in self.induction.obligations if o.equality.level is Level.UNKNOWN]

    def as_dict(self) -> Json:
        """The case as plain data."""
        return {
            "verdict": self.verdict,
            "fixed": dict(self.fixed),
            "excluded": list(self.excluded),
            "stopped": self.stopped,
            "relation": list(self.induction.relation),
        }


@dataclass(frozen=True)
class Proof:
    """A proof that two optimizers are the same for all inputs, or a counterexample.

    Attributes:
      names: of the sides.
      kinds: their types.
      symbols: the hyper-parameters that may be any number.
      cases: one proof for each case of the hyper-parameters.
      seconds: time taken.
      notes: the hyper-parameters that had to stay numbers, and why.
      sides: from hyper-parameters to each side.
    """

    names: tuple[str, str]
    kinds: tuple[str, str]
    symbols: tuple[str, ...]
    cases: tuple[CaseProof, ...]
    seconds: float
    notes: tuple[str, ...]
    sides: tuple[MakeSide, MakeSide] = field(repr=False, compare=False)

    @property
    def verdict(self) -> str:
        """`identical`, `equal over the reals`, `different` or `not decided`."""
        return max((case.verdict for case in self.cases), key=VERDICTS.index)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions under which the verdict holds."""
        texts: dict[str, None] = dict.fromkeys(self.notes)
        for case in self.cases:
            for obligation in case.induction.obligations:
                texts |= dict.fromkeys(obligation.equality.assumptions)
            if case.verdict == REALS:
                texts |= dict.fromkeys(case.induction.assumptions)
        return (*([PURE] if self.verdict in (IDENTICAL, REALS) else []), *texts)

    @property
    def counterexample(self) -> Counterexample | None:
        """An input on which the two sides differ, if they do."""
        return next((case.counterexample for case in self.cases if case.counterexample), None)

    @property
    def obligations(self) -> tuple[Obligation, ...]:
        """All obligations of all cases."""
        return tuple(o for case in self.cases for o in case.induction.obligations)

    @functools.cached_property
    def scope(self) -> Scope:
        """The scope of the verdict: shapes, dtypes, leaves, settings, steps.

        If an element depends on elements at other positions, as in a sum, the proof holds only for
        the given shapes. Otherwise it also holds for other shapes, unless a side reads them.
        """
        covered, looks = GIVEN, dict[str, None]()
        if all(o.equality.general for o in self.obligations):
            covered = ANY
            for case in self.cases:
                here, places = coverage(self.sides, case.induction.world.inputs)
                covered = max(covered, here, key=(ANY, ANY_SIZE, GIVEN).index)
                looks |= dict.fromkeys(places)
        inputs = self.cases[0].induction.world.inputs
        steps = [case.induction.most_steps for case in self.cases]
        leaves = dict(zip(inputs.paths, inputs.shapes, strict=True))
        return Scope(
            leaves={path: str(leaf.dtype) for path, leaf in leaves.items()},
            shapes={path: tuple(leaf.shape) for path, leaf in leaves.items()},
            coverage=covered,
            looks=tuple(looks),
            settings=self.symbols,
            fixed=inputs.fixed,
            steps=min((n for n in steps if n is not None), default=None),
        )

    @property
    def general(self) -> bool:
        """True if it holds for parameters of any shape that have elements."""
        return self.scope.coverage == ANY

    def as_dict(self) -> Json:
        """The verdict as plain data.

        Returns:
          `verdict`, the sides' names and kinds, `scope`, `assumptions`, `counterexample`, and
          `cases`, each with its `verdict` and the `relation` of the states.
        """
        example = self.counterexample
        return {
            "verdict": self.verdict,
            "names": list(self.names),
            "kinds": list(self.kinds),
            "scope": self.scope.as_dict(),
            "assumptions": list(self.assumptions),
            "counterexample": None if example is None else example.as_dict(),
            "seconds": self.seconds,
            "jax": jax.__version__,
            "cases": [case.as_dict() for case in self.cases],
        }

    def to_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.as_dict(), separators=(",", ":"))

    def __str__(self) -> str:
        first, second = (f"{n} ({k})" for n, k in zip(self.names, self.kinds, strict=True))
        proved = {IDENTICAL: ", proved", REALS: ", proved"}.get(self.verdict, "")
        lines = [f"{self.verdict}{proved}: {first} and {second}, {self.seconds:.2g} s"]
        if proved:
            lines.append(f"  {self.scope}")
            if self.scope.looks:
                lines.append(f"  shapes are read in {', '.join(self.scope.looks[:_MOST_LOOKS])}")
        for case in self.cases:
            if len(self.cases) > 1:
                numbers = [f"{name} = {value:g}" for name, value in case.fixed.items()]
                lines.append(f"  case {', '.join([*numbers, *case.excluded])}: {case.verdict}")
        if proved:
            assumed = _once_for_all_leaves(self.assumptions, self.scope.leaves)
            lines += ["assumptions:", *(f"- {text}" for text in assumed[:_MOST_SHOWN])]
            if len(assumed) > _MOST_SHOWN:
                more = len(assumed) - _MOST_SHOWN
                lines.append(f"- and {more} more of this kind; see `assumptions`")
        if self.counterexample is not None:
            lines.append(str(self.counterexample))
        elif self.verdict == UNDECIDED:
            for case in self.cases:
                lines += [f"  {case.stopped}"] if case.stopped else []
                # A relation is often that parameters are equal, which is told once.
                distinct = {each.nodes: each for each in reversed(case.open)}
                lines += [_left_open(each) for each in list(distinct.values())[::-1][:3]]
        return "\n".join(lines)


def _once_for_all_leaves(assumptions: Iterable[str], paths: Iterable[str]) -> list[str]:
    """Returns the assumptions, those that are alike but for the leaf as one."""
    leaves = filter(None, (path.removeprefix("params") for path in paths))
    leaf = re.compile("|".join(map(re.escape, leaves)) or "(?!)")
    groups: dict[str, list[str]] = {}
    for text in assumptions:
        named: set[str] = set(leaf.findall(text))
        is_of_one = len(named) == 1
        key = re.sub(r"\[_(, _)*\]", "", leaf.sub("", text)) if is_of_one else text
        if key in groups:
            groups[key] += named
        else:
            groups[key] = [text]
    return [
        f"{text}; the same for {', '.join(others)}" if others else text
        for text, *others in groups.values()
    ]


def _left_open(obligation: Obligation) -> str:
    lines = [f"  {obligation.when}, {obligation.leaf}: {obligation.equality.stopped}"]
    if obligation.equality.forms is not None:
        for name, form in zip(("left", "right"), obligation.equality.forms, strict=True):
            lines.append(f"    {name}: {form if len(form) <= 2000 else form[:2000] + ' ...'}")
    return "\n".join(lines)
