"""The optimizers of `torch.optim`, by family: class, transformation and entry of each."""
