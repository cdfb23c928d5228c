"""The command `optax-bridge`: one file a command, and what all of them have in common."""
