"""Evidence that legacy, exact and stock optimizers train alike."""
