"""Records a training run, for `optax-bridge replay` to find where another run diverges from it.

This file needs only NumPy and Python 3.6 or later: copy it next to the training program.

    rec = Recorder("run.rec", steps=50)
    rec.torch(model, optimizer)  # PyTorch 2: every optimizer.step() is recorded

    with rec.flax():  # flax.optim, where apply_gradient runs outside of jit and pmap
        train()

    rec.step(params=..., grads=..., new_params=..., learning_rate=..., loss=..., batch=...)

A recording is a folder: `index.json`, and one `.npz` a step, each written whole.
"""

import contextlib
import copy
import hashlib
import json
import os
import platform
import sys

import numpy as np

VERSION = 1
INDEX, STEP = "index.json", "step-%08d.npz"
TREES = ("params", "half_params", "model_state", "batch", "rng", "raw_grads", "grads")
TREES += ("state", "new_params", "new_state")
_NO_TREES = ("learning_rate", "loss", "micro_batches", "skipped")
# Leaves that are recorded unchanged: missing gradients, texts, empty containers, numbers.
_AS_IT_IS = dict.fromkeys(("grads", "raw_grads"), (type(None),))
_AS_IT_IS.update(dict.fromkeys(("batch", "rng", "model_state"), (type(None), str, dict)))
_AS_IT_IS.update(dict.fromkeys(("state", "new_state"), (type(None), str, dict, bool, int, float)))
_FRAMEWORKS = ("jax", "jaxlib", "flax", "optax", "torch", "tensorflow", "keras", "mlx", "numpy")


class Recorder:
    """Writes the first steps of a training run into a folder.

    `steps` is the number of steps to record; later ones are ignored. `first` is the number of the
    first step if training resumes from a checkpoint, and `settings` a dict of the optimizer's
    settings, which help to explain a difference.
    """

    def __init__(self, path, steps=50, first=0, settings=None):
        if os.path.exists(path):
            raise ValueError("%s already exists; name another folder" % path)
        self.path, self.steps, self.first = str(path), int(steps), int(first)
        self.count = 0
        self._settings = dict(settings or {})
        self._groups = []
        self._noted = {}
        self._last = ""  # the seal of the new parameters of the step before
        self._is_writer = _process_index() == 0

    @property
    def is_full(self):
        """True once all steps are recorded."""
        return self.count >= self.steps

    def note(self, **fields):
        """Adds loss, batch, raw_grads or rng to the step that a hook is about to record."""
        if not self.is_full:
            self._noted.update(_copy(fields))

    def step(self, params=None, grads=None, new_params=None, **fields):
        """Records one step of the optimizer.

        Trees are nested dicts, lists, tuples and dataclasses of arrays, or name -> array: `params`
        before the step and `new_params` after it (the master weights, in mixed precision), and the
        `grads` that reach the optimizer, None where one is missing. Other fields, by name:

        - `half_params`, the copies that the model computes with; `raw_grads`, before clipping;
          `state`, the optimizer's before the first recorded step, and `new_state`;
        - `model_state`, such as running statistics; `rng`; `batch`, or `digest(batch)`;
        - `learning_rate`, a number, or group -> number; `loss`; `micro_batches`, the number
          accumulated; `skipped`, True for a step that the loss scale skipped.
        """
        fields.update(dict(params=params, grads=grads, new_params=new_params), **self._noted)
        self._noted.clear()
        for name in fields:
            if name not in TREES + _NO_TREES:
                raise ValueError("step(): no field %s; help(Recorder.step) lists them" % name)
        if self.is_full or not self._is_writer:
            return
        skipped, loss = bool(fields.get("skipped")), fields.get("loss")
        if params is None or (grads is None and not skipped):
            raise ValueError("step(): expected params and grads, found None")
        meta = {
            "number": self.first + self.count,
            "rates": _rates(fields.get("learning_rate")),
            "loss": None if loss is None else _number(loss, "loss"),
            "micro_batches": int(fields.get("micro_batches", 1)),
            "skipped": skipped,
            "arrays": [],
            "scalars": [],
        }
        arrays = {}
        for tree in TREES:
            scalars, rows = _leaves(fields.get(tree), tree)
            meta["scalars"].extend([tree, path, leaf] for path, leaf in scalars)
            if tree == "params":
                _check_replica(rows)
                if _seal(rows) == self._last:
                    continue
            if tree == "new_params":
                self._last = _seal(rows)
            for path, array, dtype in rows:
                meta["arrays"].append([tree, path, dtype, array.shape])
                arrays[str(len(arrays))] = array
        self._write(meta, arrays)

    def _write(self, meta, arrays):
        if self.count == 0:
            os.makedirs(self.path)
            index = _json(self._index(meta["arrays"]))
            _write_whole(os.path.join(self.path, INDEX), lambda f: f.write(index))
        arrays["meta"] = np.frombuffer(_json(meta), np.uint8)
        file = os.path.join(self.path, STEP % meta["number"])
        _write_whole(file, lambda stream: np.savez(stream, **arrays))
        self.count += 1
        if self.count == 1:
            size = sum(array.nbytes for array in arrays.values())
            sys.stderr.write(
                "%s: up to %d steps of %s: %s; steps= limits it\n"
                % (self.path, self.steps, _size(size), _size(size * self.steps))
            )

    def _index(self, names):
        versions = {n: getattr(sys.modules.get(n), "__version__", None) for n in _FRAMEWORKS}
        return {
            "version": VERSION,
            "versions": {name: str(it) for name, it in versions.items() if it is not None},
            "python": platform.python_version(),
            "platform": "%s %s" % (platform.system(), platform.machine()),
            "dtypes": sorted({dtype for _, _, dtype, _ in names}),
            "names": names,
            "settings": _plain(self._settings),
            "groups": self._groups,
        }

    def torch(self, model, optimizer, scheduler=None):
        """Records every `optimizer.step()` from now on (PyTorch 2).

        The optimizer's state is recorded if it has taken steps before. Steps that a gradient scaler
        skips are not seen. For loss, batch and gradients before clipping see `note`.
        """
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise ValueError("torch(): expected PyTorch 2, which has hooks; call step()")
        named = dict(model.named_parameters())
        names = {id(parameter): name for name, parameter in named.items()}
        if any(id(p) not in names for group in optimizer.param_groups for p in group["params"]):
            raise ValueError("torch(): expected this model's optimizer, found other parameters")
        self._groups = [
            {
                "name": name,
                "params": [[names[id(p)]] for p in group["params"]],
                "settings": _plain({key: group[key] for key in group if key != "params"}),
            }
            for name, group in _torch_groups(optimizer)
        ]
        defaults = dict(self._groups[0]["settings"], optimizer=type(optimizer).__name__)
        self._settings = dict(defaults, **self._settings)

        def buffers():
            return _copy(dict(model.named_buffers())) or None

        taken = {"model_state": buffers()}  # before the forward pass of the step

        def before(stepped, args, kwargs):
            if self.is_full:
                return
            if self.count == 0:
                taken["state"] = copy.deepcopy(stepped.state_dict()) if stepped.state else None
                steps = [float(s["step"]) for s in stepped.state.values() if "step" in s]
                # SGD counts no steps; a scheduler may count epochs.
                self.first = self.first or int(max(steps or [getattr(scheduler, "last_epoch", 0)]))
            taken["params"] = _copy(named)
            taken["grads"] = {name: _copy(value.grad) for name, value in named.items()}
            taken["learning_rate"] = {n: group["lr"] for n, group in _torch_groups(stepped)}

        def after(stepped, args, kwargs):
            if not self.is_full:
                self.step(new_params=named, **taken)
                taken.update(model_state=buffers(), state=None)

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)
        return self

    @contextlib.contextmanager
    def flax(self, optim=None):
        """Within it every `apply_gradient` of flax.optim, or of the module `optim`, is recorded.

        Not inside of jit and pmap: return the gradients from the step and call `step()`.
        """
        if optim is None:
            from flax import optim
        cls, apply = optim.Optimizer, optim.Optimizer.apply_gradient

        def apply_gradient(optimizer, grads, **overrides):
            new = apply(optimizer, grads, **overrides)
            if self.is_full:
                return new
            definition, target, state = optimizer.optimizer_def, optimizer.target, optimizer.state
            if self.count == 0:
                self._settings = dict(_flax_settings(definition), **self._settings)
                self._groups = _flax_groups(definition, target)
                first = state[0] if type(state) in (list, tuple) else state
                self.first = self.first or int(_array(getattr(first, "step", 0), "state.step")[0])
            params = definition.update_hyper_params(**overrides)
            groups = enumerate(params) if type(params) in (list, tuple) else [("all", params)]
            rate = {name: getattr(group, "learning_rate", None) for name, group in groups}
            state = state if self.count == 0 and self.first else None
            self.step(target, grads, new.target, learning_rate=rate, state=state)
            return new

        cls.apply_gradient = apply_gradient
        try:
            yield self
        finally:
            cls.apply_gradient = apply


def digest(batch):
    """Returns a digest to record in place of a batch that is too large, or private."""
    if isinstance(batch, str):
        return batch
    texts, rows = (sorted(x, key=lambda row: _json(row[0])) for x in _leaves(batch, "batch"))
    return "sha256:" + _seal(rows, texts)


def _seal(rows, texts=()):
    total = hashlib.sha256(_json(texts))
    for path, array, dtype in rows:
        total.update(_json([path, dtype, array.shape]) + array.tobytes())
    return total.hexdigest()


def _leaves(value, tree):
    """The leaves of a tree that are recorded unchanged, and path, array and dtype of others."""
    scalars, rows = [], []
    for path, leaf in () if value is None else leaves_of(value):
        if isinstance(leaf, _AS_IT_IS.get(tree, ())):
            scalars.append([path, leaf])
        elif not isinstance(leaf, dict):  # which is an empty one
            rows.append([path, *_array(leaf, path_text(path, tree))])
    return scalars, rows


def leaves_of(tree, path=()):
    """Yields leaves, {} for empty containers, by paths of names, and of numbers in lists."""
    if hasattr(tree, "_asdict"):
        tree = tree._asdict()
    elif hasattr(type(tree), "__dataclass_fields__") and not hasattr(tree, "items"):
        tree = {name: getattr(tree, name) for name in tree.__dataclass_fields__}
    if hasattr(tree, "items"):
        items = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, (list, tuple)):
        items = list(enumerate(tree))
    else:
        yield list(path), tree
        return
    if not items:
        yield list(path), {}
    for key, value in items:
        for leaf in leaves_of(value, path + (key,)):
            yield leaf


def _array(leaf, place):
    """Returns an array of the bits on the host, and the name of the dtype."""
    kinds = [cls.__name__ for cls in type(leaf).__mro__]
    if "Tracer" in kinds or "SymbolicTensor" in kinds:
        raise ValueError(
            "%s: expected an array, found a tracer of jit or pmap. Return the gradients from the "
            "step and call rec.step(...), or run it within jax.disable_jit()" % place
        )
    if hasattr(leaf, "detach"):
        leaf = leaf.detach().cpu()
        if str(leaf.dtype) == "torch.bfloat16":
            bits = leaf.contiguous().view(sys.modules["torch"].int16).numpy()
            return bits.view(np.uint16).copy(), "bfloat16"
        leaf = leaf.numpy()
    if str(getattr(leaf, "dtype", "")).startswith("key<"):
        leaf = sys.modules["jax"].random.key_data(leaf)
    array = np.array(leaf, order="C")
    name = array.dtype.name
    if array.dtype.kind in "fiubc":
        return array, name
    if array.dtype.kind == "V" and not array.dtype.names and array.dtype.itemsize in (1, 2):
        return array.view("u%d" % array.dtype.itemsize), name  # bfloat16, float8: by their bits
    raise ValueError("%s: expected an array of numbers, found %s" % (place, kinds[0]))


def _check_replica(rows):
    """Raises an error where all parameters are copies along a leading axis of the devices."""
    jax = sys.modules.get("jax")
    count = jax.local_device_count() if jax else 1
    if count < 2 or not rows or any(array.shape[:1] != (count,) for _, array, _ in rows):
        return
    if all((array == array[:1]).all() for _, array, _ in rows):
        raise ValueError(
            "%s: expected one replica, found a leading axis of devices: record flax.jax_utils."
            "unreplicate(...) of parameters, gradients and state" % path_text(rows[0][0])
        )


def _copy(value):
    """A copy of what a framework changes in place: tensors and arrays, in dicts and lists."""
    if isinstance(value, dict):
        return {name: _copy(below) for name, below in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_copy, value))
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.detach().clone() if hasattr(value, "detach") else value


def _number(value, place):
    _array(value, place)  # refuses what is no number
    return float(value.detach() if hasattr(value, "detach") else value)


def _rates(rate):
    items = rate.items() if hasattr(rate, "items") else [("all", rate)]
    return {str(n): _number(value, "learning_rate") for n, value in items if value is not None}


def _torch_groups(optimizer):
    groups = enumerate(optimizer.param_groups)
    return [(str(group.get("name", number)), group) for number, group in groups]


def _flax_groups(definition, target):
    """Members and settings of the groups of a MultiOptimizer."""
    paths = {id(leaf): path for path, leaf in leaves_of(target)}
    groups = zip(getattr(definition, "traversals", ()), getattr(definition, "sub_optimizers", ()))
    return [
        {
            "name": str(number),
            "params": [paths[id(leaf)] for leaf in traversal.iterate(target)],
            "settings": _flax_settings(part),
        }
        for number, (traversal, part) in enumerate(groups)
    ]


def _flax_settings(definition):
    fields = getattr(definition.hyper_params, "__dict__", {})  # a MultiOptimizer has a list
    return dict(_plain(fields), optimizer=type(definition).__name__)


def _plain(settings):
    """Settings that JSON has."""
    plain = {}
    for name, value in settings.items():
        with contextlib.suppress(TypeError, ValueError):
            value = value.item() if getattr(value, "ndim", 1) == 0 else value
            plain[name] = json.loads(json.dumps(value))
    return plain


def path_text(path, tree="params"):
    """Returns a leaf's path as messages write it: `params['dense']['kernel']`."""
    return tree + "".join("[%r]" % key for key in path)


def _json(value):
    return json.dumps(value).encode("utf-8")


def _process_index():
    jax, torch = sys.modules.get("jax"), sys.modules.get("torch")
    if torch and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return getattr(jax, "process_index", getattr(jax, "host_id", lambda: 0))()


def _size(count):
    return "%.3g GB" % (count / 1e9) if count >= 1e9 else "%.3g MB" % (count / 1e6)


def _write_whole(path, write):
    """Writes a file under another name first, so that a killed run leaves no half of one."""
    temporary = path + ".part"
    with open(temporary, "wb") as file:
        write(file)
    os.replace(temporary, path)
