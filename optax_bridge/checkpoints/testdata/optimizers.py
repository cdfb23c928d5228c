"""The optimizers that `record.py` made the checkpoints of this folder with, by file."""

OPTIMIZERS = {
    "adabelief": "AdaBelief(1e-2)",
    "adadelta": "Adadelta(1.0)",
    "adafactor": "Adafactor(0.1, beta1=0.9, min_dim_size_to_factor=3)",
    "adagrad": "Adagrad(1e-2)",
    "adam": "Adam(1e-2)",
    "adam_bfloat16": "Adam(1e-2)",
    "adamw": "Adam(1e-2, weight_decay=0.1)",
    "chunked": "Adam(1e-2)",
    "focus": 'MultiOptimizer(("*kernel", Momentum(0.1)))',
    "gradient_descent": "GradientDescent(0.1)",
    "lamb": "LAMB(1e-2, weight_decay=0.1)",
    "lars": "LARS(1.0)",
    "momentum": "Momentum(0.1, beta=0.9)",
    "multi_optimizer": 'MultiOptimizer(("*kernel", Adam(1e-2)), ("*bias", Momentum(0.1)))',
    "pre_linen": "Adagrad(1e-2)",
    "rmsprop": "RMSProp(1e-2)",
    "rmsprop_centered": "RMSProp(1e-2, centered=True)",
    "weight_norm": "WeightNorm(Adam(1e-2))",
    "adafactor_bfloat16": "Adafactor(0.1, beta1=0.9, min_dim_size_to_factor=3)",
    "weight_norm_momentum": "WeightNorm(Momentum(0.1))",
    "groups_of_none_and_one": (
        'MultiOptimizer(("*kernel", Adam(1e-2)), ("*temperature", Momentum(0.1)), '
        '("*nothing", RMSProp(1e-2)))'
    ),
    "frozen_dict": "Adagrad(1e-2)",
    "list": "Adam(1e-2)",
    "bare_array": "Momentum(0.1)",
    "no_elements": "Adam(1e-2)",
    "odd_names": "Adam(1e-2)",
}
