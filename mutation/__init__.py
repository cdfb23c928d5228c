"""Random single faults in what holds state, each run through the tests of its module.

`nox -s mutants` plants them; cosmic-ray says what a fault is. See `mutation/modules.py` for what is
mutated, and CONTRIBUTING.md for how survivors are treated.
"""
