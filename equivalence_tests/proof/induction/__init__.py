"""Proofs by induction over steps."""
