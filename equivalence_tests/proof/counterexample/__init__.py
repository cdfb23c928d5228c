"""Inputs on which two sides part."""
