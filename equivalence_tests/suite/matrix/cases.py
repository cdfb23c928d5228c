"""The cases of the matrix: blocks of products of axes, one id for each case."""

from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace

from equivalence_tests.suite.case import Case
from equivalence_tests.suite.matrix.axes import DTYPES, STREAMS, TREES
from optax_bridge.correspondence import ENTRIES, UnsupportedSetting, Verdict, choose_recipe


@dataclass(frozen=True, order=True)
class MatrixCase(Case):
    """One case: where it stands on each axis.

    Attributes:
      entry: name of the correspondence entry.
      setting: index into the entry's cases.
      tree: one of `axes.TREES`.
      dtype: one of `axes.DTYPES`.
      rate: one of `axes.RATES`.
      drive: one of `axes.DRIVES`.
      recipe: one of `axes.RECIPES`.
      mode: one of `axes.MODES`.
      stream: one of `axes.STREAMS`.
    """

    axes = (
        ("entry",), ("tree",), ("dtype",), ("rate",), ("drive",), ("recipe",), ("mode",),
        ("stream",),
    )  # fmt: skip

    entry: str
    setting: int = 0
    tree: str = "plain"
    dtype: str = "float32"
    rate: str = "constant"
    drive: str = "scan"
    recipe: str = "exact"
    mode: str = "free"
    stream: str = "normal"

    def __str__(self) -> str:
        return "-".join(["matrix", *(str(at).replace("-", "_") for at in astuple(self))])

    @property
    def program(self) -> "MatrixCase":
        """The values that decide the compiled programs: cases that agree here share them."""
        return replace(self, recipe="exact", mode="free", stream="normal")

    @property
    def column(self) -> str:
        """The axis that this case is about."""
        if self.tree != "plain":  # before its drive: the thousand leaves cannot be compiled
            return self.tree
        if self.drive != "scan":
            return self.drive
        if self.rate != "constant":
            return self.rate
        if self.dtype != "float32":
            return self.dtype
        return self.mode if self.recipe == "exact" else self.recipe


_FEW = ("normal", "mixture", "alternating")


def matrix() -> list[MatrixCase]:
    """All cases, those that share programs side by side."""
    return sorted(set(_all()), key=lambda case: (case.program, case.recipe, case.mode, case.stream))


def _all() -> Iterator[MatrixCase]:
    for entry, about in ENTRIES.items():
        for setting in range(len(about.cases)):
            case = MatrixCase(entry, setting)
            yield from (replace(case, stream=stream) for stream in STREAMS)
            for stream in ("normal", "mixture", "nan"):
                yield replace(case, mode="resumed", stream=stream)
            yield from _stock(case)
        first = MatrixCase(entry)
        for dtype in DTYPES[1:]:
            yield from (replace(first, dtype=dtype, stream=stream) for stream in STREAMS)
        for tree in TREES:
            if tree == "thousand":  # without a compiler, which would be busy for a minute
                yield replace(first, tree=tree, drive="eager")
            elif tree != "plain" and tree not in about.excluded:
                yield from (replace(first, tree=tree, stream=stream) for stream in STREAMS)
        for rate in ("schedule", "per-call", "per-group"):
            if rate not in about.excluded:
                yield from (replace(first, rate=rate, stream=stream) for stream in _FEW)
        for drive in ("eager", "jit", "donate", "vmap", "sharded", "data-parallel"):
            yield from (replace(first, drive=drive, stream=stream) for stream in _FEW)


def _stock(case: MatrixCase) -> Iterator[MatrixCase]:
    """Recipes of public Optax; those that are another optimizer only where that must show."""
    entry = ENTRIES[case.entry]
    about = entry.cases[case.setting]
    try:
        definition = entry.definition(about, about.learning_rate)
        choice = choose_recipe(definition, "standalone")
    except UnsupportedSetting:
        return
    if choice.claim.verdict is Verdict.DIFFERENT:
        yield replace(case, recipe="stock", stream="mixture")
        return
    yield from (replace(case, recipe="stock", stream=stream) for stream in STREAMS)
    for dtype in set(DTYPES[1:]) & choice.dtypes:
        yield replace(case, recipe="stock", dtype=dtype, stream="mixture")
