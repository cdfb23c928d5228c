"""Inputs on which two sides differ."""
