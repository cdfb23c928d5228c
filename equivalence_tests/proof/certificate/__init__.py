"""A proof as data, and an independent check of it."""
