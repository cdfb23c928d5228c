"""Optimizers of PyTorch and Keras as sides."""
