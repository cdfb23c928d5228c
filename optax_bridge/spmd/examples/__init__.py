# pyright: strict
"""Configs of complete trainers: `optax-bridge train` takes their names."""
