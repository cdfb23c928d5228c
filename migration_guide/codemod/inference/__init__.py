"""What the expressions of a program hold, followed through its files."""
