"""How far rounding can take one step."""
