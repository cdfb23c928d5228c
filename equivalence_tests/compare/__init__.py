"""Comparing trajectories: distances, verdicts, and what a difference is made of."""
