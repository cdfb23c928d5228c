"""What this project costs, as ratios: one file for each measurement."""
