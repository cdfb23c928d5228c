"""The error of two sides that cannot be compared."""


class EquivalenceError(ValueError):
    """Something that keeps two sides from being compared; says which side, step and leaf."""
