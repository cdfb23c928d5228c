"""From what a user hands in to programs."""
