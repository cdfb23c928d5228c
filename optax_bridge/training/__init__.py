"""Training states: their steps, learning rates, shardings and ways in from files and NNX."""
