"""Checkpoints of PyTorch: what is in them, under which names, and how they move to Flax and back.

A file is one more format of `optax_bridge.checkpoints`; `names.toml` says where each tensor goes.
What comes of both is laid out as a legacy checkpoint, so that all else is that of those.
"""
