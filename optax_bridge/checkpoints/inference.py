"""The optimizers that a state may be of, by the names of its fields."""

from collections.abc import Mapping
from dataclasses import replace

import legacy_optim
from legacy_optim.deprecation import describing
from legacy_optim.older_layout import has_older_weight_norm
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.locate import Part
from optax_bridge.correspondence import ENTRIES, Entry, entries_by_class


def candidates(part: Part) -> list[str]:
    """The legacy classes whose state has the fields of this one, most special first."""
    if part.is_grouped:
        return ["MultiOptimizer"]
    return sorted(e.legacy.__name__ for e in ENTRIES.values() if e.matches(_field_names(part)))


def _field_names(part: Part) -> set[frozenset[str]]:
    """The names of the fields that the parameters' states have: one set for each kind of state."""
    return {frozenset(s) for _, _, s in part.rows if isinstance(s, Mapping)}


def _only_entry(part: Part) -> Entry | None:
    """The entry of the one class that a state may be of; None if there are several, or none."""
    names = candidates(part)
    return entries_by_class()[names[0]] if len(names) == 1 else None


def _within(part: Part) -> list[Part]:
    """The parts of each optimizer within one that holds others; empty in the older layout."""
    holder = _only_entry(part)
    if holder is None or holder.parts is None or part.is_grouped:
        return []
    return [
        replace(
            part, target={"/".join(path): target for path, target, _ in group},
            param_states={"/".join(path): state for path, _, state in group},
        )
        for group in holder.parts.rows_within([r for r in part.rows if isinstance(r[2], Mapping)])
    ]  # fmt: skip


def looks_like(part: Part) -> str:
    """The classes that a state may be of, in words: `WeightNorm of Adam or LAMB`."""
    names = candidates(part)
    inner = _within(part)
    if inner:
        return f"{names[0]} of {', '.join(sorted(map(looks_like, inner)))}"
    if not names and has_older_weight_norm(part.param_states):
        return "WeightNorm of up to flax 0.3.6, which no later release can continue"
    return " or ".join(names) or "no optimizer of legacy_optim"


def other_classes(part: Part, name: str) -> str:
    """The classes that a state may be of, none of this name, in words; "" if it may be that."""
    entry, classes = entries_by_class().get(name), candidates(part)
    if entry is None or entry.parts is not None:
        return ""
    # A state of which some leaves are damaged is told leaf by leaf, not taken for another's.
    may_be = name in classes or any(entry.matches({names}) for names in _field_names(part))
    return "" if may_be or not classes else f"the state of {looks_like(part)}"


@describing()
def infer_definitions(part: Part) -> list[legacy_optim.OptimizerDef]:
    """Definitions that a state may be of, the likeliest first."""
    entry = _only_entry(part)
    holder = entry.parts if entry is not None else None
    inner = _within(part)
    entry_of_inner = _only_entry(inner[0]) if len(inner) == 1 else None
    if holder is not None and entry_of_inner is not None and entry_of_inner.parts is None:
        outer = map(holder.wrap, infer_definitions(inner[0]))
        return [definition for definition in outer if definition is not None]
    if entry is None or holder is not None:
        names = candidates(part)
        likely = "Adam" if "Adam" in names else (names or ["Adam"])[-1]
        example = f"{likely}(learning_rate=1e-3)" if holder is None else holder.example
        raise CheckpointError(
            part.name_of("state"), "the state of one known optimizer",
            f"fields that fit {looks_like(part)}",
            f"Say which: --optimizer '{example}', or optimizer_def= in Python; or --like "
            "new.py:make_state, the state of the migrated program."
            if names
            else "If its class is your own: --like new.py:make_state, of the migrated program, or "
            "optimizer_def= in Python.",
        )  # fmt: skip
    if entry.inferred is not None:
        return [entry.legacy(**entry.inferred(part.rows))]
    switches = [hp for hp in entry.hyper_params if isinstance(hp.default, bool)]
    changes = [{switch.legacy: not switch.default} for switch in switches]
    return [entry.legacy(**change) for change in [{}, *changes]]
