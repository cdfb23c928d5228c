"""Translation, English to German: a transformer that reads and writes letters.

Names of countries, languages and units. Trained with Adam, decay of the weights, label smoothing and
a learning rate that falls with the root of the step; beam search translates half-way and at the end.
"""
import argparse
import difflib
import functools
import json
import os
import pathlib

from flax import linen as nn
from flax import optim
from flax.training import checkpoints
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

NAMES = pathlib.Path(__file__).resolve().parents[1] / 'data' / 'names.tsv'
BATCH_SIZE = 64
NUM_STEPS = 300
SAVE_EVERY = 150
EVAL_EVERY = 50
TRANSLATE_EVERY = 150
NUM_TEST = 64
LENGTH = 20
BEAMS = 4
# A space before a name begins and after it has ended.
LETTERS = " -ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyzÄÖÜäöüß"
LEARNING_RATE = 0.004
WARMUP_STEPS = 50
WEIGHT_DECAY = 1e-3
LABEL_SMOOTHING = 0.05


class Block(nn.Module):
    """Attention to itself, to what the encoder has read if there is that, and a layer for each."""

    @nn.compact
    def __call__(self, x, mask, memory=None, memory_mask=None):
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(y, y, mask=mask)
        if memory is not None:
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=2)(y, memory, mask=memory_mask)
        y = nn.LayerNorm()(x)
        return x + nn.Dense(x.shape[-1])(nn.relu(nn.Dense(2 * x.shape[-1])(y)))


class Transformer(nn.Module):
    """One block to read, one to write."""
    features: int = 20

    def setup(self):
        self.embed = nn.Embed(len(LETTERS), self.features)
        self.positions = self.param(
            'positions', nn.initializers.normal(0.1), (LENGTH, self.features))
        self.encoder = Block()
        self.decoder = Block()
        self.norm = nn.LayerNorm()
        self.logits = nn.Dense(len(LETTERS))

    def encode(self, sources):
        mask = nn.make_attention_mask(jnp.ones_like(sources), is_letter(sources))
        return self.encoder(self.embed(sources) + self.positions, mask)

    def decode(self, memory, sources, before):
        """The logits of every letter, by the letters before it."""
        memory_mask = nn.make_attention_mask(jnp.ones_like(before), is_letter(sources))
        x = self.embed(before) + self.positions
        x = self.decoder(x, nn.make_causal_mask(before), memory, memory_mask)
        return self.logits(self.norm(x))

    def __call__(self, sources, targets):
        return self.decode(self.encode(sources), sources, shifted(targets))


def is_letter(tokens):
    """Without the spaces behind a name."""
    return jnp.cumsum((tokens > 0)[:, ::-1], axis=1)[:, ::-1] > 0


def shifted(targets):
    return jnp.pad(targets[:, :-1], ((0, 0), (1, 0)))


def get_datasets():
    rows = [row.split('\t') for row in NAMES.read_text(encoding='utf-8').splitlines()]
    np.random.RandomState(0).shuffle(rows)
    tokens = np.array([[[LETTERS.index(letter) for letter in name.ljust(LENGTH)] for name in row]
                       for row in rows], np.int32)
    dataset = {'sources': tokens[:, 0], 'targets': tokens[:, 1]}
    train = {key: value[NUM_TEST:] for key, value in dataset.items()}
    return train, {key: value[:NUM_TEST] for key, value in dataset.items()}


def get_batch(dataset, step):
    chosen = np.random.RandomState(step).choice(len(dataset['targets']), BATCH_SIZE, replace=False)
    return {key: value[chosen] for key, value in dataset.items()}


def learning_rate_fn(step):
    """Rises linearly, then falls with the root of the step."""
    step = step + 1.0
    return LEARNING_RATE * jnp.minimum(step / WARMUP_STEPS, jnp.sqrt(WARMUP_STEPS) / jnp.sqrt(step))


def letters_until_end(targets):
    """1 for each letter and for the first space behind them, which ends the name."""
    lengths = jnp.sum(is_letter(targets), axis=-1, keepdims=True)
    return jnp.float32(jnp.arange(LENGTH) <= lengths)


def cross_entropy_loss(logits, targets, label_smoothing=0.0):
    """The mean over letters; 0 is the least that smoothed labels allow."""
    low = label_smoothing / (len(LETTERS) - 1)
    high = 1.0 - label_smoothing
    least = -(high * np.log(high) + label_smoothing * np.log(low + 1e-20))
    soft_targets = jax.nn.one_hot(targets, len(LETTERS)) * (high - low) + low
    losses = -jnp.sum(soft_targets * nn.log_softmax(logits), axis=-1) - least
    weights = letters_until_end(targets)
    return jnp.sum(losses * weights) / jnp.sum(weights)


@jax.jit
def train_step(optimizer, batch):
    def loss_fn(params):
        logits = Transformer().apply({'params': params}, batch['sources'], batch['targets'])
        return cross_entropy_loss(logits, batch['targets'], LABEL_SMOOTHING)

    loss, grad = jax.value_and_grad(loss_fn)(optimizer.target)
    learning_rate = learning_rate_fn(optimizer.state.step)
    return optimizer.apply_gradient(grad, learning_rate=learning_rate), loss


@jax.jit
def eval_step(params, batch):
    logits = Transformer().apply({'params': params}, batch['sources'], batch['targets'])
    weights = letters_until_end(batch['targets'])
    right = jnp.argmax(logits, -1) == batch['targets']
    return {
        'eval_loss': cross_entropy_loss(logits, batch['targets']),
        'eval_accuracy': jnp.sum(right * weights) / jnp.sum(weights),
    }


@functools.partial(jax.vmap, in_axes=(None, 0))
def beam_search(params, source):
    """The likeliest translation of one name that a few beams find; two spaces end it."""
    model, variables = Transformer(), {'params': params}
    sources = jnp.tile(source, (BEAMS, 1))
    memory = model.apply(variables, sources, method=Transformer.encode)

    def extend(position, beams):
        tokens, scores, ended = beams
        logits = model.apply(
            variables, memory, sources, shifted(tokens), method=Transformer.decode)
        # What has ended goes on with spaces, for nothing.
        spaces = jnp.where(jnp.arange(len(LETTERS)) == 0, 0.0, -jnp.inf)
        log_probs = nn.log_softmax(logits[:, position])
        log_probs = jnp.where(ended[:, None], spaces, log_probs)
        scores, chosen = lax.top_k(jnp.ravel(scores[:, None] + log_probs), BEAMS)
        beam, letter = chosen // len(LETTERS), chosen % len(LETTERS)
        before = jnp.where(position > 0, tokens[beam, position - 1], 1)
        ended = ended[beam] | ((letter == 0) & (before == 0))
        return tokens[beam].at[:, position].set(letter), scores, ended

    tokens = jnp.zeros((BEAMS, LENGTH), jnp.int32)
    scores = jnp.where(jnp.arange(BEAMS) == 0, 0.0, -jnp.inf)
    tokens, scores, _ = lax.fori_loop(0, LENGTH, extend, (tokens, scores, scores < 0.0))
    return tokens[jnp.argmax(scores)]


def as_text(tokens):
    return ''.join(LETTERS[token] for token in tokens).strip()


def similarity(translated, targets):
    """1 where all translations are right, 0 where no letter is."""
    pairs = [(as_text(a), as_text(b)) for a, b in zip(translated, targets)]
    return np.mean([difflib.SequenceMatcher(None, a, b).ratio() for a, b in pairs])


def log(step, **metrics):
    print(json.dumps({'step': step, **{key: float(value) for key, value in metrics.items()}}))


def train_and_evaluate(workdir, num_steps):
    train, test = get_datasets()
    ckpt_dir = os.path.abspath(workdir)
    tokens = jnp.ones((1, LENGTH), jnp.int32)
    params = jax.jit(Transformer().init)(jax.random.PRNGKey(0), tokens, tokens)['params']
    optimizer_def = optim.Adam(beta1=0.9, beta2=0.98, eps=1e-9, weight_decay=WEIGHT_DECAY)
    optimizer = optimizer_def.create(params)
    optimizer = checkpoints.restore_checkpoint(ckpt_dir, optimizer)
    for step in range(int(optimizer.state.step) + 1, num_steps + 1):
        optimizer, loss = train_step(optimizer, get_batch(train, step))
        log(step, loss=loss)
        if step % EVAL_EVERY == 0:
            log(step, **eval_step(optimizer.target, test))
        if step % SAVE_EVERY == 0 or step == num_steps:
            checkpoints.save_checkpoint(ckpt_dir, optimizer, step, keep=2)
        if step % TRANSLATE_EVERY == 0:
            translated = jax.jit(beam_search)(optimizer.target, test['sources'])
            log(step, eval_similarity=similarity(translated, test['targets']))


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--workdir', required=True)
    parser.add_argument('--num_steps', type=int, default=NUM_STEPS)
    args = parser.parse_args()
    train_and_evaluate(args.workdir, args.num_steps)
