"""Two optimizers beside one another: runs, proof, and the settings that tell them apart."""
