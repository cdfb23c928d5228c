"""The command `optax-bridge`, also as `python -m optax_bridge`."""

import sys

from optax_bridge.installed import MissingExtraError, require


def main() -> None:
    """Runs the command; 2 and how to install it where the packages for it are missing."""
    try:
        require("cli", "optax-bridge")
    except MissingExtraError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    from optax_bridge.command import main as command  # which imports those packages

    command()


if __name__ == "__main__":
    main()
