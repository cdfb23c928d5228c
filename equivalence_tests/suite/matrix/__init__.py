"""The matrix: optimizers x settings x trees x dtypes x gradients x rates x ways to drive them."""
