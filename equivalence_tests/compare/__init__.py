"""Compares trajectories: distances, verdicts, and the nature of a difference."""
