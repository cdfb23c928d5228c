"""The optimizers of `torch.optim`, one file each: class, transformation and entry."""
