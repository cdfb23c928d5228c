"""From a user's optimizers to programs."""
