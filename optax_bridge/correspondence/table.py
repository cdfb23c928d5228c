"""The table of all entries, and what is asked of it: entry, description and recipe."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import legacy_optim
from optax_bridge.checks import is_legacy
from optax_bridge.correspondence.claim import HALF_PRECISION
from optax_bridge.correspondence.entry import Entry
from optax_bridge.correspondence.recipe import Node


class Table(Mapping[str, Entry]):
    """An origin: name -> entry, of each module of a package that defines `ENTRY`, or of one module.

    They are imported when the first is asked for: an optimizer's module itself needs this package.

    Attributes:
      name: what commands call it: `torch`.
      origin: the module of its optimizers: `torch.optim`.
      title: the library, for messages: `PyTorch`.
      package: of this project, with its definitions and transformations.
      proved: the dtypes in which `optax-bridge prove` decides its claims.
      without_entry: its optimizers that have none, its schedules -> what to do instead.
    """

    def __init__(
        self,
        name: str,
        origin: str,
        title: str,
        package: str,
        homes: str,
        *,
        proved: Sequence[str] = ("float32", *HALF_PRECISION),
        without_entry: Mapping[str, str] | None = None,
    ):
        """The table; `homes` is a pattern of what stands before the names of its optimizers."""
        self.name, self.origin, self.title, self.package = name, origin, title, package
        self._homes, self.proved = homes, tuple(proved)
        self.without_entry = without_entry or {}

    def is_home(self, module: str) -> bool:
        """True if what stands before an optimizer's name means this origin."""
        return re.fullmatch(self._homes, module) is not None

    @property
    def example(self) -> str:
        """A constructor call, for messages."""
        entry = next(e for n, e in entries_by_class(self).items() if n.lower() == "adam")
        prefix = "" if self is ENTRIES else f"{self.origin}."
        return f"{prefix}{entry.legacy.__name__}({entry.rate}=1e-3)"

    @functools.cached_property
    def _entries(self) -> dict[str, Entry]:
        package = importlib.import_module(f"{self.package}.optimizers")
        if not hasattr(package, "__path__"):  # a module that defines all of them
            return {entry.name: entry for entry in package.ENTRIES}
        names = [module.name for module in pkgutil.iter_modules(package.__path__)]
        modules = [
            importlib.import_module(f"{package.__name__}.{name}")
            for name in names
            if not name.endswith("_test")
        ]
        entries = (module.ENTRY for module in modules if hasattr(module, "ENTRY"))
        return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


_SCHEDULE = "a schedule, which any learning rate of Optax takes unchanged"

ENTRIES = Table(
    "flax", "flax.optim", "flax.optim", "optax_bridge", r"(flax\.)?(legacy_)?optim(\..*)?"
)
_TORCH_SCHEDULERS = (
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
)
TORCH = Table(
    "torch",
    "torch.optim",
    "PyTorch",
    "optax_bridge.torch",
    r"(torch\.)?optim(\.\w+)?|torch|lr_scheduler|optax_bridge\.torch",
    proved=("float32",),
    without_entry=dict.fromkeys(
        _TORCH_SCHEDULERS,
        "it is a scheduler, no optimizer. Give its call to optax_bridge.torch.from_torch_schedule, "
        'e.g. from_torch_schedule("StepLR(step_size=30)", lr=0.1): that makes a schedule, which is '
        "the learning rate of an optimizer, or says what to write instead",
    )
    | {
        "LBFGS": "it calls the loss several times a step, which no recipe of a gradient can stand "
        "for. optax.lbfgs() is the same method with a line search of its own: pass value=, grad= "
        "and value_fn= to its update. What it keeps is not taken over; start with a fresh state",
        "SparseAdam": "it updates the rows of an embedding that a gradient names, and JAX has "
        "dense gradients. torch.optim.Adam(...) is the same where every row has a gradient; "
        "elsewhere its moments decay at every step, SparseAdam's do not",
    },
)


JAX = Table(
    "jax",
    "jax.example_libraries.optimizers",
    "JAX",
    "optax_bridge.jax",
    r"((jax\.)?(example_libraries|experimental)\.)?optimizers|optax_bridge\.jax(\.definitions)?",
    without_entry={
        "sm3": "optax.chain(optax.scale_by_sm3(b1=momentum, eps=0.0), "
        "optax.scale_by_learning_rate(step_size)) is the same but for rounding, on parameters with "
        "an axis; optax.scale_by_sm3 fails on scalars. Its state is not taken over; start with a "
        "fresh one",
        "constant": f"{_SCHEDULE}; optax.constant_schedule(step_size) is the same",
        "exponential_decay": f"{_SCHEDULE}; optax.exponential_decay(step_size, decay_steps, "
        "decay_rate) is the same",
        "inverse_time_decay": f"{_SCHEDULE}; Optax has none like it: write lambda count: step_size "
        "/ (1 + decay_rate * count / decay_steps), with jnp.floor around the quotient if staircase",
        "polynomial_decay": f"{_SCHEDULE}; optax.polynomial_schedule(step_size, final_step_size, "
        "power, decay_steps) is the same",
        "piecewise_constant": f"{_SCHEDULE}; optax.join_schedules([*map(optax.constant_schedule, "
        "values)], [b + 1 for b in boundaries]) is the same: JAX changes the value after the step "
        "that a boundary names, Optax at it",
        "make_schedule": "not needed: every learning rate of Optax is a number or a schedule",
        "clip_grads": "optax.clip_by_global_norm(max_norm) is the same but for rounding: a "
        "transformation, which stands first in optax.chain, and no function of the gradients",
        "l2_norm": "optax.tree.norm(tree) is the same but for rounding",
    },
)

_OWN_KIND = "no optimizer of Optax computes the same, and none of this project does yet"
KERAS = Table(
    "keras",
    "keras.optimizers",
    "Keras",
    "optax_bridge.keras",
    r"(((tf|tensorflow)\.)?keras\.)?optimizers(\.schedules)?|optax_bridge\.keras(\.definitions)?",
    without_entry={
        "Adagrad": "optax.adagrad(learning_rate, initial_accumulator_value, eps=epsilon) is the "
        "same but for rounding; with a weight decay, optax.scale_by_rss and "
        "optax.add_decayed_weights in a chain",
        "Lamb": "optax.lamb(learning_rate, beta_1, beta_2, eps=epsilon) is the same but for "
        "rounding, without weight_decay, and until squares overflow: then Keras has NaN",
        "Adafactor": f"{_OWN_KIND}. optax.adafactor is the nearest",
        "Ftrl": f"{_OWN_KIND}. Optax has no FTRL",
        "Muon": f"{_OWN_KIND}. optax.contrib.muon is the nearest",
        "Nadam": f"{_OWN_KIND}. optax.nadam lacks the momentum's schedule, 1 - 0.5 * 0.96**t",
        "ScheduleFreeAdamW": f"{_OWN_KIND}. optax.contrib.schedule_free_adamw is the nearest",
        "LossScaleOptimizer": "it scales losses and gradients around another optimizer: ask for "
        "that one, and skip steps with optax.apply_if_finite",
        "MultiOptimizer": "it has an optimizer for each group of parameters: ask for each, and put "
        "them into optax.partition",
        "ExponentialDecay": "optax.exponential_decay(initial_learning_rate, decay_steps, "
        "decay_rate, staircase=staircase) is the same but for rounding",
        "PolynomialDecay": "optax.polynomial_schedule(initial_learning_rate, end_learning_rate, "
        "power, decay_steps) is the same but for rounding, without cycle=True",
        "CosineDecay": "optax.cosine_decay_schedule(initial_learning_rate, decay_steps, alpha) is "
        "the same but for rounding, without warmup_target",
        "PiecewiseConstantDecay": "optax.join_schedules([*map(optax.constant_schedule, values)], "
        "[b + 1 for b in boundaries]) is the same: Keras changes the value after the step that a "
        "boundary names, Optax at it",
        "InverseTimeDecay": "Optax has none like it: write lambda count: initial_learning_rate / "
        "(1 + decay_rate * count / decay_steps), with jnp.floor around the quotient if staircase",
        "CosineDecayRestarts": "optax.sgdr_schedule restarts likewise, from a list with the "
        "arguments of each cycle",
    },
)

# Whose optimizers are known. Where a name fits several, the first that has it so spelt is meant.
ORIGINS = (ENTRIES, TORCH, JAX, KERAS)


def origin_of(entry: Entry) -> Table:
    """The origin that an entry is of."""
    return next(table for table in ORIGINS if entry.name in table)


def all_entries() -> dict[str, Entry]:
    """The entries of every origin, by name."""
    return {name: entry for table in ORIGINS for name, entry in table.items()}


def entry_of(definition: legacy_optim.OptimizerDef) -> Entry | None:
    """The entry of a definition's class; None for a class of the program's, subclasses included."""
    module = type(definition).__module__  # tells the table, so that no other is imported
    others = (table for table in ORIGINS[1:] if module.startswith(f"{table.package}."))
    table = next(others, ENTRIES)
    return next((e for e in table.values() if e.legacy.cls is type(definition)), None)


def entries_by_class(table: Table = ENTRIES) -> dict[str, Entry]:
    """The entries of an origin by the names of their classes."""
    return {entry.legacy.__name__: entry for entry in table.values()}


def names_of_entries(asked: Iterable[str], others: Iterable[str] = ()) -> list[str]:
    """Names as the table has them: of entries, by theirs or by the class's, and of other things.

    Args:
      asked: what a user typed, in any case: `Adam`, `adam`, `torch.AdamW`, `torch.optim.AdamW`.
      others: further names that are known.

    Returns:
      The names; what is not known stays unchanged.
    """
    by_lower_case = {name.lower(): name for name in others}
    by_lower_case |= {entry.legacy.__name__.lower(): name for name, entry in ENTRIES.items()}
    for table in ORIGINS:
        by_lower_case |= {
            key.lower(): name
            for name, entry in table.items()
            for key in (name, f"{table.origin}.{entry.legacy.__name__}")
        }
    return [by_lower_case.get(name.lower(), name) for name in asked]


@dataclass(frozen=True)
class Described:
    """An optimizer by its entry and its settings.

    Attributes:
      entry: the entry.
      settings: legacy name -> value, for every hyper-parameter; a nested optimizer is `Described`
        as well, or the definition itself if its class has no entry.
      extra_arguments: what else its constructor was given, see `Entry`: name -> source.
    """

    entry: Entry
    settings: Mapping[str, Node]
    extra_arguments: Mapping[str, str] = field(default_factory=dict[str, str])

    def remarks(self) -> list[str]:
        """Remarks on the arguments that are no settings, where they are no defaults."""
        name = f"{self.entry.sources[0]}"
        return [
            f"{name}({argument}={source}): {self.entry.extra_arguments[argument]}"
            for argument, source in self.extra_arguments.items()
            if argument != "params" and source not in ("None", "False")
        ]


def describe(definition: legacy_optim.OptimizerDef) -> Described | legacy_optim.OptimizerDef:
    """A definition as data; the definition itself if its class is one of the user's own."""
    entry = entry_of(definition)
    if entry is None:
        return definition
    return Described(entry, with_inner(entry.settings(definition), describe))


def with_inner(settings: Mapping[str, Node], change: Callable[[Node], Node]) -> dict[str, Node]:
    """Settings with each optimizer in them changed."""

    def change_in(value: Node) -> Node:
        if isinstance(value, Described) or is_legacy(value, "OptimizerDef"):
            return change(value)
        return tuple(map(change_in, value)) if isinstance(value, tuple) else value

    return {name: change_in(value) for name, value in settings.items()}
