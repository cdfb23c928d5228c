"""Recordings of training runs: one format, a recorder for any framework, and their replay."""
