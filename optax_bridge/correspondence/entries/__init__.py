"""One file for each legacy optimizer; each defines `ENTRY`."""
