"""The tools by which rules write: the context of a file, calls, imports, definitions."""
