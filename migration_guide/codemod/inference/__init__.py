"""Infers the kinds of a program's expressions, through all its files."""
