"""The report of one pair: its text, its verdict, its picture."""

import html
import json
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import jax

from equivalence_tests.compare.comparison import Comparison, Difference, as_data, as_json
from equivalence_tests.compare.judgement import Judgement, Nature
from equivalence_tests.compare.relation import Relation, relations_text
from equivalence_tests.compare.trees import shapes_text
from equivalence_tests.environment import environment
from equivalence_tests.plot import Svg, divergence
from optax_bridge.correspondence import Verdict


@dataclass(frozen=True)
class Report:
    """The comparison of two optimizers.

    Attributes:
      names: of the two sides.
      kinds: their types: `Adam`, `GradientTransformation`, ...
      sources: their source code.
      steps: number of steps.
      bound: the distance that still counts as rounding, in ULP, for 100 steps.
      comparison: of the trajectories.
      state_compared: True if the optimizer states were compared too.
      wide: the comparison of the same runs in float64, None if not needed or not possible.
      parameters_wide: that of the parameters alone in those runs.
      about_wide: a remark on it, or why it was not possible.
      parameters: the comparison of the parameters alone, which decides where the states are
        related.
      relations: path -> relation of the right state's leaf to the left state, if all leaves are
        linearly related.
      tried: the gradients in words, if they have a name.
      started: other parameters from which the sides also started, in words.
      at_rest: paths of the parameters that no step moves on either side.
      finite: the number of steps until a parameter is not finite although the gradients are; None
        if there is no such step.
      closed_loop: True if each side followed its own gradients.
      pinned: settings that were fixed.
      signature: path of each parameter -> its shape and dtype.
    """

    names: tuple[str, str]
    kinds: tuple[str, str]
    sources: tuple[str, str]
    steps: int
    bound: float
    comparison: Comparison
    state_compared: bool
    wide: Comparison | None
    about_wide: str
    closed_loop: bool
    pinned: str = ""
    tried: str = ""
    started: str = ""
    at_rest: tuple[str, ...] = ()
    finite: int | None = None
    parameters: Comparison | None = None
    parameters_wide: Comparison | None = None
    relations: Mapping[str, Relation] = field(default_factory=dict)
    signature: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)

    @property
    def judgement(self) -> Judgement:
        """The verdict and its grounds.

        Within the bound, what float64 shows to be another algorithm is different still.
        """
        verdict = self.agreeing.within(self.bound)
        judgement = self._judgement_of(self.agreeing, verdict, self.wide)
        if verdict is Verdict.ROUNDING and self.wide and judgement.nature is not Nature.ROUNDING:
            return replace(judgement, verdict=Verdict.DIFFERENT)
        return judgement

    def _judgement_of(
        self, comparison: Comparison, verdict: Verdict, wide: Comparison | None
    ) -> Judgement:
        return Judgement(comparison, verdict, self.bound, wide, self.about_wide, self.bound)

    @property
    def verdict(self) -> Verdict:
        """Identical, rounding only, or different."""
        return self.judgement.verdict

    @property
    def nature(self) -> Nature:
        """Rounding or another algorithm, as the float64 run decides, or else the growth."""
        return self.judgement.nature

    @property
    def headline(self) -> str:
        """Verdict, leaf, distance and step in one line."""
        return self.judgement.headline

    @property
    def compared(self) -> str:
        """The trees that were compared, and the conditions."""
        state = " and state" if self.state_compared else " (the states are not alike)"
        count = self.comparison.leaves
        leaves = "1 leaf" if count == 1 else f"{count} leaves"
        return f"parameters{state}, {leaves}, at every step; {self.pinned}"

    @property
    def about_shapes(self) -> str:
        """The dtypes and shapes of the parameters, in words."""
        return shapes_text(self.signature.values())

    @property
    def about_rest(self) -> str:
        """The parameters that no step moves, in words."""
        if self.nothing_moves:
            return "all parameters, so nothing is compared: pass some that both sides move"
        named = textwrap.shorten(", ".join(self.at_rest), 200, placeholder=" ...")
        number = f"{len(self.at_rest)} of {len(self.signature)}"
        return f"{number} parameters, about which the runs say nothing: {named}"

    @property
    def nothing_moves(self) -> bool:
        """True if no step moves any parameter on either side."""
        shapes = [shape for shape, _ in self.signature.values() if math.prod(shape)]
        return bool(shapes) and len(shapes) == len(self.at_rest)

    @property
    def _loop(self) -> str:
        return "each with its own gradients" if self.closed_loop else "the same gradients"

    @property
    def agreeing(self) -> Comparison:
        """The comparison that decides: of parameters and state, or of parameters alone."""
        return self.parameters if self.relations and self.parameters else self.comparison

    @property
    def about_states(self) -> str:
        """The relation of the states, or that only they differ; "" if neither holds."""
        differ = self.verdict is Verdict.DIFFERENT
        if self.relations:
            agree = "" if differ else "the parameters agree; "
            return f"{agree}the states are related: {relations_text(self.relations)}"
        alone = self.parameters
        if not (differ and self.state_compared) or alone is None:
            return ""
        if alone.within(self.bound) is Verdict.DIFFERENT:
            return ""
        wide = self.parameters_wide  # in which they may be of another algorithm, however near
        there = self._judgement_of(alone, Verdict.DIFFERENT, wide)
        if wide is not None and there.nature is Nature.ALGORITHM:
            return ""
        distance = "identical" if alone.identical else f"within {alone.ulp:.3g} ULP"
        return (
            f"only the optimizer states differ: the parameters are {distance} in these steps, and "
            "may differ in later ones"
        )

    @property
    def first_difference(self) -> Difference | None:
        """Step, leaf, index and both values of the first difference; None if identical."""
        return self.comparison.first

    def __str__(self) -> str:
        comparison, judgement = self.agreeing, self.judgement
        lines = [
            f"{self.verdict.value}: {self.names[0]} ({self.kinds[0]}) and {self.names[1]} "
            f"({self.kinds[1]}), {self.steps} steps, {self._loop}",
            f"  compared: {self.compared}",
        ]
        if self.signature:
            parameters = textwrap.shorten(self.about_shapes, 300, placeholder=" ...")
            lines.append(f"  parameters: {parameters}")
        if self.tried:
            lines.append(f"  gradients: {self.tried}")
        if self.started:
            lines.append(f"  also started from: {self.started}")
        if self.at_rest:
            lines.append(f"  at rest on both sides: {self.about_rest}")
        if self.finite is not None:
            lines.append(
                f"  NaN or infinity from step {self.finite + 1} on, which hides later differences"
            )
        if about := self.about_states:
            lines.append(f"  {about}")
        if comparison.first is not None:
            what = judgement.headline.removeprefix(f"{self.verdict.value}: ")
            lines += [
                f"  difference: {what}",
                *([f"  {after_poison}"] if (after_poison := judgement.after_poison) else []),
                f"  first difference: {comparison.first}",
                f"  nature: {judgement.explanation}",
            ]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """The report as plain data."""
        comparison, first = self.agreeing, self.agreeing.first
        return {
            "names": list(self.names),
            "kinds": list(self.kinds),
            "sources": list(self.sources),
            "verdict": self.verdict.value,
            "nature": self.nature.value,
            "steps": self.steps,
            "bound": self.bound,
            **as_data(comparison, self.wide),
            "shapes": {
                path: f"{dtype}[{', '.join(map(str, shape))}]"
                for path, (shape, dtype) in self.signature.items()
            },
            "state_compared": self.state_compared,
            "closed_loop": self.closed_loop,
            "pinned": self.pinned,
            "histogram": dict(comparison.histogram),
            "first_difference": None
            if first is None
            else {
                "step": first.step,
                "leaf": first.leaf,
                "index": list(first.index),
                "left": as_json(first.left),
                "right": as_json(first.right),
            },
            "headline": self.headline,
            "gradients": self.tried,
            "started": self.started,
            "at_rest": list(self.at_rest),
            "finite_steps": self.finite,
            "states": self.about_states,
            "environment": environment(jax.devices()[0]),
        }

    def to_json(self) -> str:
        """The report as JSON; infinity and NaN are strings."""
        return json.dumps(self.as_dict(), indent=1)

    def plot(self) -> Svg:
        """The distance over the steps as a picture: shown by notebooks, `str` of it is SVG.

        It is empty where the two are identical.
        """
        judgement = self._judgement_of(self.comparison, self.verdict, self.wide)
        return divergence(judgement, f"{self.names[0]} / {self.names[1]}")

    def _repr_html_(self) -> str:
        return f"<div><pre>{html.escape(str(self))}</pre>{self.plot()}</div>"
