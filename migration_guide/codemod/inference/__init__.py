"""Infers what the expressions of a program hold, through all its files."""
