"""The cases that `check` runs, and how they are run."""
