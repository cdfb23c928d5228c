"""A small transformer that learns to write like Python's documentation, byte by byte.

    optax-bridge train optax_bridge.spmd.examples.language_model.trainer --dir run

The text ships with Python itself, in `pydoc_data.topics`: the pages of `help`. It takes about
a minute on two cores.
"""

from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import numpy as np
import optax

import optax_bridge
from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.checkpointer import Checkpointer, every_n_steps_and_last_policy
from optax_bridge.spmd.config import REQUIRED, Required, config_class, config_for_function
from optax_bridge.spmd.evaler import SpmdEvaler, every_n_steps_policy
from optax_bridge.spmd.examples.transformer import TransformerAttentionLayer
from optax_bridge.spmd.input import ArrayInput
from optax_bridge.spmd.layer import (
    BaseLayer,
    BaseModel,
    Embedding,
    LayerNorm,
    Linear,
    StackedTransformerLayer,
)
from optax_bridge.spmd.learner import Learner
from optax_bridge.spmd.metrics import WeightedSummary
from optax_bridge.spmd.module import Module
from optax_bridge.spmd.optimizers import cosine_with_linear_warmup, with_learning_rate
from optax_bridge.spmd.trainer import SpmdTrainer

BYTES = 256


class Block(BaseLayer):
    """Attention, and two linear layers, each with a norm before it and a skip connection."""

    @config_class
    class Config(BaseLayer.Config):
        """Configures Block."""

        input_dim: Required[int] = REQUIRED
        attention: TransformerAttentionLayer.Config = TransformerAttentionLayer.default_config()

    def __init__(self, cfg: Config, *, parent: Module | None):
        super().__init__(cfg, parent=parent)
        dim = cfg.input_dim
        self._add_child("attention", cfg.attention.clone(target_dim=dim, source_dim=dim))
        self._add_child("norm", LayerNorm.default_config().set(input_dim=dim))
        linear = Linear.default_config()
        self._add_child("first", linear.clone(input_dim=dim, output_dim=4 * dim))
        self._add_child("second", linear.clone(input_dim=4 * dim, output_dim=dim))

    def forward(self, x: jax.Array) -> jax.Array:
        """Maps (batch, time, input_dim) to the same shape."""
        x = self.attention(x)
        return x + self.second(jax.nn.gelu(self.first(self.norm(x))))


class LanguageModel(BaseModel):
    """Predicts each byte from those before it."""

    @config_class
    class Config(BaseModel.Config):
        """Configures LanguageModel."""

        dim: Required[int] = REQUIRED
        num_layers: Required[int] = REQUIRED
        num_heads: Required[int] = REQUIRED
        length: Required[int] = REQUIRED

    def __init__(self, cfg: Config, *, parent: Module | None):
        super().__init__(cfg, parent=parent)
        layer = Block.default_config()
        layer.attention.attention.set(num_heads=cfg.num_heads, causal=True)
        stack = StackedTransformerLayer.default_config().set(
            input_dim=cfg.dim, num_layers=cfg.num_layers, layer=layer
        )
        embedding = Embedding.default_config().set(dim=cfg.dim)
        self._add_child("bytes", embedding.clone(num_embeddings=BYTES))
        self._add_child("positions", embedding.clone(num_embeddings=cfg.length))
        self._add_child("stack", stack)
        self._add_child("norm", LayerNorm.default_config().set(input_dim=cfg.dim))
        output = Linear.default_config().set(input_dim=cfg.dim, output_dim=BYTES)
        self._add_child("output", output)

    def forward(self, input_batch: PyTree) -> tuple[jax.Array, dict[str, PyTree]]:
        """The mean cross-entropy, in nats for a byte."""
        text = input_batch["bytes"].astype(jnp.int32)
        seen, target = text[:, :-1], text[:, 1:]
        x = self.bytes(seen) + self.positions(jnp.arange(seen.shape[1]))
        logits = self.output(self.norm(self.stack(x))).astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, target)
        loss = jnp.mean(losses)
        self.add_summary("loss", WeightedSummary(loss, jnp.float32(losses.size)))
        return loss, {}


def documentation(length: int, *, held_out: bool = False) -> dict[str, np.ndarray]:
    """The documentation as pieces of text, every 20th of them held out."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    pieces = np.frombuffer(text, np.uint8)[: len(text) // (length + 1) * (length + 1)]
    pieces = pieces.reshape(-1, length + 1)
    is_held_out = np.arange(len(pieces)) % 20 == 0
    return {"bytes": pieces[is_held_out == held_out]}


def trainer(
    *, steps: int = 400, length: int = 64, batch_size: int = 32, dim: int = 96
) -> SpmdTrainer.Config:
    """The trainer's config, for any number of devices that divides the batch."""
    text = config_for_function(documentation).set(length=length)
    held_out = ArrayInput.default_config().set(
        source=text.clone(held_out=True), global_batch_size=128, shuffle=False, num_epochs=1
    )
    rate = config_for_function(cosine_with_linear_warmup).set(
        peak_lr=3e-3, max_step=steps, warmup_steps=max(1, steps // 10), alpha=0.1
    )
    adam = config_for_function(with_learning_rate).set(
        optimizer=config_for_function(optax_bridge.adam).set(b2=0.98), learning_rate=rate
    )
    save = config_for_function(every_n_steps_and_last_policy).set(
        n=max(1, steps // 4), max_step=steps
    )
    evaluate = config_for_function(every_n_steps_policy).set(n=max(1, steps // 4))
    return SpmdTrainer.default_config().set(
        name="trainer",
        model=LanguageModel.default_config().set(
            dtype=jnp.float32, dim=dim, num_layers=2, num_heads=4, length=length
        ),
        input=ArrayInput.default_config().set(source=text, global_batch_size=batch_size),
        learner=Learner.default_config().set(optimizer=adam),
        mesh_shape=(-1,),
        mesh_axis_names=("data",),
        max_step=steps,
        save_input_iterator=True,
        checkpointer=Checkpointer.default_config().set(save_policy=save),
        evalers={"held_out": SpmdEvaler.default_config().set(input=held_out, eval_policy=evaluate)},
    )
