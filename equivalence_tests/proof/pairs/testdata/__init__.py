"""Pairs of optimizers as data: equal ones, and ones that differ."""
