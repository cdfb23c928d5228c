"""The formats of checkpoints: a module in this folder that defines `FORMAT` is one.

A format says by which content it is recognised, reads a checkpoint into nested dicts whose arrays
may be left on the disk until somebody asks for them, and, where it can, writes one. Everything else
(`inspect`, `convert`, `--format`, restoring) asks `read`, so a new format is one file here:

    FORMAT = Format("Toy", "toy", find=found, read=contents, write=write)

A longer one is a folder with a `FORMAT` in its `__init__.py`.
"""
