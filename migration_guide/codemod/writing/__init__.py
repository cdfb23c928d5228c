"""What rules write with: the context of a file, calls, imports, definitions."""
