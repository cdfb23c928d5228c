"""Python's tokens: a transformer that says of each what kind it is.

The tokens are those of real modules; rare ones are unknown to the model, so that it has to tell a
string from a name by what stands around it. Trained with Adam, decay of the weights and a schedule.
"""
import argparse
import collections
import functools
import io
import json
import keyword
import os
import pathlib
import tokenize

from flax import linen as nn
from flax import optim
from flax.training import checkpoints
import jax
import jax.numpy as jnp
import numpy as np

SOURCES = pathlib.Path(__file__).resolve().parents[1] / 'data' / 'sources.txt'
BATCH_SIZE = 32
NUM_STEPS = 200
SAVE_EVERY = 100
EVAL_EVERY = 50
LENGTH = 32
NUM_TEST = 30
VOCAB_SIZE = 128
WARMUP_STEPS = 40
LEARNING_RATE = 0.005
KINDS = ('keyword', 'defined', 'attribute', 'called', 'name', 'number', 'string', 'operator',
         'comment')


class Tagger(nn.Module):
    """An encoder of one layer."""
    features: int = 24

    @nn.compact
    def __call__(self, tokens, train):
        positions = self.param('positions', nn.initializers.normal(0.02), (LENGTH, self.features))
        x = nn.Embed(VOCAB_SIZE, self.features)(tokens) + positions
        x = nn.Dropout(0.2, deterministic=not train)(x)
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(y, y)
        y = nn.LayerNorm()(x)
        x = x + nn.Dense(self.features)(nn.relu(nn.Dense(2 * self.features)(y)))
        return nn.Dense(len(KINDS))(nn.LayerNorm()(x))


def kind_of(previous, token, following):
    """What a token is, by its neighbours."""
    if token.type != tokenize.NAME:
        kinds = {tokenize.NUMBER: 'number', tokenize.STRING: 'string', tokenize.COMMENT: 'comment'}
        return kinds.get(token.type, 'operator')
    if keyword.iskeyword(token.string):
        return 'keyword'
    if previous in ('def', 'class'):
        return 'defined'
    if previous == '.':
        return 'attribute'
    return 'called' if following == '(' else 'name'


def get_datasets():
    """Windows of tokens and their kinds."""
    readline = io.StringIO(SOURCES.read_text(encoding='utf-8')).readline
    layout = (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    found = [token for token in tokenize.generate_tokens(readline) if token.type not in layout]
    texts = [token.string for token in found]
    kinds = [kind_of(*triple) for triple in zip([''] + texts, found, texts[1:] + [''])]
    common = collections.Counter(texts).most_common(VOCAB_SIZE - 1)
    known = {text: index + 1 for index, (text, _) in enumerate(common)}
    count = len(texts) // LENGTH
    dataset = {
        'tokens': np.array([known.get(text, 0) for text in texts[:count * LENGTH]], np.int32),
        'kinds': np.array([KINDS.index(kind) for kind in kinds[:count * LENGTH]], np.int32),
    }
    order = np.random.RandomState(0).permutation(count)
    dataset = {key: value.reshape(count, LENGTH)[order] for key, value in dataset.items()}
    train = {key: value[NUM_TEST:] for key, value in dataset.items()}
    return train, {key: value[:NUM_TEST] for key, value in dataset.items()}


def get_batch(dataset, step):
    chosen = np.random.RandomState(step).choice(len(dataset['kinds']), BATCH_SIZE, replace=False)
    return {key: value[chosen] for key, value in dataset.items()}


def rsqrt_schedule(step):
    """Rises linearly, then falls with the root of the step."""
    step = jnp.maximum(step + 1.0, 1.0)
    return LEARNING_RATE * jnp.minimum(step / WARMUP_STEPS, jnp.sqrt(WARMUP_STEPS / step))


def cross_entropy_loss(logits, kinds):
    one_hot = jax.nn.one_hot(kinds, len(KINDS))
    return -jnp.mean(jnp.sum(one_hot * nn.log_softmax(logits), axis=-1))


@jax.jit
def train_step(optimizer, batch, rng):
    step = optimizer.state.step
    dropout_rng = jax.random.fold_in(rng, step)

    def loss_fn(params):
        logits = Tagger().apply(
            {'params': params}, batch['tokens'], train=True, rngs={'dropout': dropout_rng})
        return cross_entropy_loss(logits, batch['kinds'])

    loss, grad = jax.value_and_grad(loss_fn)(optimizer.target)
    optimizer = optimizer.apply_gradient(grad, learning_rate=rsqrt_schedule(step))
    return optimizer, loss


@jax.jit
def eval_step(params, batch):
    logits = Tagger().apply({'params': params}, batch['tokens'], train=False)
    return {
        'eval_loss': cross_entropy_loss(logits, batch['kinds']),
        'eval_accuracy': jnp.mean(jnp.argmax(logits, -1) == batch['kinds']),
    }


def log(step, **metrics):
    print(json.dumps({'step': step, **{key: float(value) for key, value in metrics.items()}}))


def train_and_evaluate(workdir, num_steps):
    train, test = get_datasets()
    ckpt_dir = os.path.abspath(workdir)
    rng, init_rng = jax.random.split(jax.random.PRNGKey(0))
    init = jax.jit(functools.partial(Tagger().init, train=False))
    params = init(init_rng, jnp.zeros((1, LENGTH), jnp.int32))['params']
    optimizer_def = optim.Adam(beta1=0.9, beta2=0.98, eps=1e-9, weight_decay=0.01)
    optimizer = optimizer_def.create(params)
    optimizer = checkpoints.restore_checkpoint(ckpt_dir, optimizer)
    for step in range(int(optimizer.state.step) + 1, num_steps + 1):
        optimizer, loss = train_step(optimizer, get_batch(train, step), rng)
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
