"""What the old API tells programs, kept from commands that make old optimizers by the dozen."""

import warnings


def silence_deprecations() -> None:
    """What they tell a program is no news to the suite, which makes old optimizers by the dozen."""
    for message in ("flax.optim was removed", "Optimizer.replicate"):
        warnings.filterwarnings("ignore", message=message, category=DeprecationWarning)
