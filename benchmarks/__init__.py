"""The costs of this project, as ratios: one file for each measurement."""
