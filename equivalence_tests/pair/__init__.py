"""Two optimizers side by side: runs, proof, and the settings that tell them apart."""
