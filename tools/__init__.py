"""Makes or tries the project's own files: recorders, fuzzers, kills, long runs.

Run from the repository as `python -m tools.NAME`; not part of the wheel.
"""
