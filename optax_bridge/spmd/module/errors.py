# pyright: strict
"""The errors of names in trees of modules and contexts."""


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
