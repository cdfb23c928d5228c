"""A graph's results as functions of real numbers, in normal form."""
