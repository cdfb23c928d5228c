"""`python -m optax_bridge`, the same as the command `optax-bridge`."""

from optax_bridge.cli.start import main

if __name__ == "__main__":
    main()
