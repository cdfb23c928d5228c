"""Bounds of the rounding of one step."""
