"""What `optax-bridge convert` and `inspect` do at a terminal; their options are in `command/`."""
