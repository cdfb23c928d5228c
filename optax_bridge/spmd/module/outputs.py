# pyright: strict
"""Outputs of a call apart from its result: summaries, state updates, outputs of inner modules."""

import re
from typing import NamedTuple, Self

from optax_bridge.metadata.trees import PyTree

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class ChildNameConflictError(ValueError):
    """A module has two children of one name."""


class InvalidDescendantError(ValueError):
    """A module is not below another one, or not shared by one above."""


class OutputConflictError(ValueError):
    """Two calls leave their outputs in one place, as when a child is called twice."""

    def __init__(self, message: str) -> None:
        super().__init__(
            f"{message} This is how to call a module multiple times: give each call a context of a "
            "name of its own, `with child_context('second', module=self.child): self.child(x)`."
        )


def check_name(name: str, what: str) -> None:
    """Raises ValueError unless the name is in lower_case_with_underscores."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot be the name of a {what}: it must match '{_NAME.pattern}'"
        )


class OutputCollection(NamedTuple):
    """The outputs of a tree of modules, without their results, as nested dicts by context.

    Attributes:
      summaries: what is worth watching: arrays or `Summary`s.
      state_updates: new values for parts of the state, such as running averages.
      module_outputs: anything else that is of interest outside.
    """

    summaries: dict[str, PyTree]
    state_updates: dict[str, PyTree]
    module_outputs: dict[str, PyTree]

    def __contains__(self, name: object) -> bool:
        return name in self.summaries

    def add_child(self, name: str) -> "OutputCollection":
        """A collection for a child, which is also a part of this one.

        Raises:
          ValueError: the name is not in lower_case_with_underscores.
          OutputConflictError: the name is taken.
        """
        check_name(name, "context")
        if name in self:
            raise OutputConflictError(
                f"{name} already present in the outputs {sorted(self.summaries)}."
            )
        child = new_output_collection()
        for ours, its in zip(self, child, strict=True):
            ours[name] = its
        return child

    def update(self, other: Self) -> None:
        """Takes over what the other collection has."""
        for ours, its in zip(self, other, strict=True):
            ours.update(its)


def new_output_collection() -> OutputCollection:
    """An empty collection."""
    return OutputCollection(summaries={}, state_updates={}, module_outputs={})
