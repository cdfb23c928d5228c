"""Real numbers in normal form: quotients of polynomials over atoms, conditions, roots and sums."""
