"""The command `optax-bridge`: one file for each subcommand, and the parts they share."""
