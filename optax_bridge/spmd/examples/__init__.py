# pyright: strict
"""Configs of trainers that run as they are: `optax-bridge train` takes their names."""
