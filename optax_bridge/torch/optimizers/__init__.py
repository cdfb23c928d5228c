"""The optimizers of `torch.optim`, by family: class, transformation and entry of each."""

from optax_bridge.torch.schedules import OTHERWISE, SCHEDULERS

# What has no entry -> what to do instead.
WITHOUT_ENTRY = dict.fromkeys(
    (*SCHEDULERS, *OTHERWISE),
    "it is a scheduler, not an optimizer. Pass its call to "
    'optax_bridge.torch.from_torch_schedule, e.g. from_torch_schedule("StepLR(step_size=30)", '
    "lr=0.1): that makes a schedule, for the learning rate of an optimizer, or says what to "
    "write instead",
) | {
    "LBFGS": "it calls the loss several times a step, which no recipe does. optax.lbfgs() is "
    "the same method with another line search: pass value=, grad= and value_fn= to its "
    "update. Its state cannot be converted; start with a fresh one",
    "SparseAdam": "it updates the rows of an embedding that a gradient names, and JAX has "
    "dense gradients. torch.optim.Adam(...) is the same where every row has a gradient; "
    "elsewhere its moments decay at every step, SparseAdam's do not",
}
