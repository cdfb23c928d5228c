"""The optimizers in legacy arithmetic, groups of them, and how groups and axes are chosen."""
