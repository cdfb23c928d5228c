"""English words: an LSTM reads a word without its vowels and another writes the whole word."""
import argparse
import json
import os
import pathlib
import re

from flax import linen as nn
from flax import optim
from flax.training import checkpoints
import jax
import jax.numpy as jnp
import numpy as np

PROSE = pathlib.Path(__file__).resolve().parents[1] / 'data' / 'prose.txt'
BATCH_SIZE = 128
NUM_STEPS = 300
SAVE_EVERY = 150
EVAL_EVERY = 50
NUM_TEST = 100
LONGEST = 9
# No letter before a word begins and after it has ended.
LETTERS = ' abcdefghijklmnopqrstuvwxyz'


class LSTMCell(nn.Module):
    features: int

    @nn.compact
    def __call__(self, carry, x):
        c, h = carry
        gates = nn.Dense(4 * self.features)(jnp.concatenate([x, h], axis=-1))
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = nn.sigmoid(f + 1.0) * c + nn.sigmoid(i) * jnp.tanh(g)
        h = nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h


class Seq2Seq(nn.Module):
    """An encoder, and a decoder that is told every letter after it has guessed it."""
    features: int = 24

    @nn.compact
    def __call__(self, consonants, words):
        lstm = nn.scan(
            LSTMCell, variable_broadcast='params', split_rngs={'params': False},
            in_axes=1, out_axes=1)
        zeros = jnp.zeros((words.shape[0], self.features))
        carry, _ = lstm(self.features, name='encoder')((zeros, zeros), one_hot(consonants))
        before = jnp.pad(words[:, :-1], ((0, 0), (1, 0)))
        _, hidden = lstm(self.features, name='decoder')(carry, one_hot(before))
        return nn.Dense(len(LETTERS))(hidden)


def one_hot(letters):
    return jax.nn.one_hot(letters, len(LETTERS))


def get_datasets():
    """The words of Python's documentation, the more often they stand there the more often here."""
    words = re.findall(r'\b[a-z]{3,%d}\b' % (LONGEST - 1), PROSE.read_text(encoding='utf-8'))
    different = sorted(set(words))
    np.random.RandomState(0).shuffle(different)
    test = set(different[:NUM_TEST])
    return encoded([w for w in words if w not in test]), encoded(different[:NUM_TEST])


def encoded(words):
    """The words without vowels, which end where the encoder does, and the words."""
    consonants = [re.sub('[aeiou]', '', word).rjust(LONGEST) for word in words]
    rows = [[LETTERS.index(letter) for letter in text] for text in consonants]
    targets = [[LETTERS.index(letter) for letter in word.ljust(LONGEST)] for word in words]
    return {'consonants': np.array(rows, np.int32), 'words': np.array(targets, np.int32)}


def get_batch(dataset, step):
    chosen = np.random.RandomState(step).choice(len(dataset['words']), BATCH_SIZE, replace=False)
    return {key: value[chosen] for key, value in dataset.items()}


def letters_until_end(words):
    """1 for each letter and for the first space behind them, which ends the word."""
    lengths = jnp.sum(words > 0, axis=-1, keepdims=True)
    return jnp.float32(jnp.arange(words.shape[-1]) <= lengths)


def cross_entropy_loss(logits, words):
    weights = letters_until_end(words)
    log_likelihoods = jnp.sum(one_hot(words) * nn.log_softmax(logits), axis=-1)
    return -jnp.sum(log_likelihoods * weights) / jnp.sum(weights)


@jax.jit
def train_step(optimizer, batch):
    def loss_fn(params):
        logits = Seq2Seq().apply({'params': params}, batch['consonants'], batch['words'])
        return cross_entropy_loss(logits, batch['words'])

    grad_fn = jax.value_and_grad(loss_fn)
    loss, grad = grad_fn(optimizer.target)
    optimizer = optimizer.apply_gradient(grad)
    return optimizer, loss


@jax.jit
def eval_step(params, batch):
    logits = Seq2Seq().apply({'params': params}, batch['consonants'], batch['words'])
    weights = letters_until_end(batch['words'])
    right = jnp.argmax(logits, -1) == batch['words']
    return {
        'eval_loss': cross_entropy_loss(logits, batch['words']),
        'eval_accuracy': jnp.sum(right * weights) / jnp.sum(weights),
    }


def log(step, **metrics):
    print(json.dumps({'step': step, **{key: float(value) for key, value in metrics.items()}}))


def train_and_evaluate(workdir, num_steps):
    train, test = get_datasets()
    ckpt_dir = os.path.abspath(workdir)
    letters = jnp.zeros((1, LONGEST), jnp.int32)
    params = Seq2Seq().init(jax.random.PRNGKey(0), letters, letters)['params']
    optimizer = optim.Adam(learning_rate=0.01).create(params)
    optimizer = checkpoints.restore_checkpoint(ckpt_dir, optimizer)
    for step in range(int(optimizer.state.step) + 1, num_steps + 1):
        optimizer, loss = train_step(optimizer, get_batch(train, step))
        log(step, loss=loss)
        if step % EVAL_EVERY == 0:
            log(step, **eval_step(optimizer.target, test))
        if step % SAVE_EVERY == 0 or step == num_steps:
            checkpoints.save_checkpoint(ckpt_dir, optimizer, step, keep=2)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--workdir', required=True)
    parser.add_argument('--num_steps', type=int, default=NUM_STEPS)
    args = parser.parse_args()
    train_and_evaluate(args.workdir, args.num_steps)
