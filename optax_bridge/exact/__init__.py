"""Transformations that also take the step, and the arguments that a step takes."""
