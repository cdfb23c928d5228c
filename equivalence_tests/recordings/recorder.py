"""Records a training run, for `optax-bridge replay` to find where another one parts from it.

This file needs NumPy alone, and Python 3.6 or later: copy it beside the training program.

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
INDEX = "index.json"
TREES = (
    "params",  # before the step; in half precision with masters: the masters
    "half_params",  # the half-precision copy that the model computes with, if there is one
    "model_state",  # what the loss reads beside the parameters, such as running statistics
    "batch",
    "rng",
    "raw_grads",  # before clipping
    "grads",  # as they reach the optimizer
    "state",  # of the optimizer, before the first recorded step
    "new_params",
    "new_state",
)
# Trees whose Python scalars and empty containers are recorded as they are.
_WITH_SCALARS = ("state", "new_state", "batch", "rng", "model_state")
_SCALARS = (bool, int, float, str, dict, type(None))
_FRAMEWORKS = ("jax", "jaxlib", "flax", "optax", "torch", "tensorflow", "keras", "mlx", "numpy")


class RecorderError(ValueError):
    """Something that cannot be recorded; says which leaf, and what to do."""


class Recorder:
    """Writes the first steps of a training run into a folder.

    `steps` is the number of steps that are recorded; what comes after them is ignored. `first` is
    the number of the first step where training goes on from a checkpoint, and `settings` a dict
    of the optimizer's settings, for the explanation of a difference.
    """

    def __init__(self, path, steps=50, first=0, settings=None):
        if os.path.exists(path):
            raise RecorderError("%s: there is something already; name another folder" % path)
        if int(steps) < 1:
            raise RecorderError("steps=%r: expected one or more" % (steps,))
        self.path, self.steps, self.first = str(path), int(steps), int(first)
        self.count = 0
        self._settings = dict(settings or {})
        self._groups = []
        self._noted = {}
        self._last = {}  # the new parameters of the step before, by path
        self._is_writer = _process_index() == 0

    @property
    def is_full(self):
        """True once all steps are recorded."""
        return self.count >= self.steps

    def note(self, **fields):
        """Adds fields of `step` to the next step that a hook records: loss, batch, raw_grads, rng.

        Call it before `optimizer.step()`, or `apply_gradient`.
        """
        if not self.is_full:
            self._noted.update(_copy(fields))

    def step(
        self,
        params=None,
        grads=None,
        new_params=None,
        state=None,
        raw_grads=None,
        model_state=None,
        rng=None,
        learning_rate=None,
        loss=None,
        batch=None,
        micro_batches=1,
        half_params=None,
        skipped=False,
        new_state=None,
    ):
        """Records one step of the optimizer.

        Trees are nested dicts, lists, tuples and dataclasses of arrays, or name -> array. `grads`
        are those that reach the optimizer, `raw_grads` those before clipping; a gradient that is
        None is recorded as missing. `state` is the optimizer's before the first recorded step.
        `learning_rate` is a number, or group -> number. `batch` may be the text of `digest(batch)`.
        `skipped` is a step that a loss scale did not take.
        """
        if self.is_full or not self._is_writer:
            return
        trees = dict(
            params=params, half_params=half_params, model_state=model_state, batch=batch, rng=rng,
            raw_grads=raw_grads, grads=grads, state=state, new_params=new_params,
            new_state=new_state,
        )  # fmt: skip
        if params is None or (grads is None and not skipped):
            raise RecorderError("step(): expected params and grads, found None")
        meta = {
            "number": self.first + self.count,
            "rates": _rates(learning_rate),
            "loss": None if loss is None else _number(loss, "loss"),
            "micro_batches": int(micro_batches),
            "skipped": bool(skipped),
            "missing": [],
            "digest": batch if isinstance(batch, str) else None,
            "arrays": [],
            "scalars": [],
        }
        if isinstance(batch, str):
            trees["batch"] = None
        arrays = {}
        for tree in TREES:
            if trees[tree] is None:
                continue
            leaves = list(leaves_of(trees[tree], tree))
            _check_replica(tree, leaves)
            values = {}
            for path, leaf in leaves:
                if leaf is None and tree in ("grads", "raw_grads"):
                    meta["missing"].append([tree, path])
                elif tree in _WITH_SCALARS and isinstance(leaf, _SCALARS):
                    meta["scalars"].append([tree, path, leaf])
                else:
                    values[json.dumps(path)] = path, _array(leaf, _place(tree, path))
            if tree == "params" and _same(values, self._last):
                continue  # the new parameters of the step before
            if tree == "new_params":
                self._last = values
            for path, (array, dtype) in values.values():
                meta["arrays"].append([tree, path, dtype])
                arrays[str(len(arrays))] = array
        self._write(meta, arrays)

    def _write(self, meta, arrays):
        if self.count == 0:
            os.makedirs(self.path)
            index = _index(self, meta)
            _write_whole(os.path.join(self.path, INDEX), lambda f: f.write(_json(index)))
        arrays["meta"] = np.frombuffer(_json(meta), np.uint8)
        name = "step-%08d.npz" % meta["number"]
        _write_whole(os.path.join(self.path, name), lambda f: np.savez(f, **arrays))
        self.count += 1
        if self.count == 1:
            size = sum(array.nbytes for array in arrays.values())
            sys.stderr.write(
                "%s: up to %d steps of %s: %s; steps= limits it\n"
                % (self.path, self.steps, _size(size), _size(size * self.steps))
            )

    def torch(self, model, optimizer, scheduler=None):
        """Records every `optimizer.step()` from now on (PyTorch 2).

        The state of the optimizer is taken where it has taken steps. With a gradient scaler, the
        steps that it skips are not seen. Loss, batch and gradients before clipping: see `note`.
        """
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise RecorderError("torch(): expected PyTorch 2, which has hooks; call step()")
        named = dict(model.named_parameters())
        names = {id(parameter): name for name, parameter in named.items()}
        for number, group in enumerate(optimizer.param_groups):
            unknown = [p for p in group["params"] if id(p) not in names]
            if unknown:
                raise RecorderError(
                    "torch(): %d parameters of the optimizer are not the model's" % len(unknown)
                )
            settings = {key: value for key, value in group.items() if key != "params"}
            self._groups.append(
                {
                    "name": _group_name(number, group),
                    "params": [[names[id(p)]] for p in group["params"]],
                    "settings": _plain(settings),
                }
            )
        self._settings = dict(
            self._groups[0]["settings"], optimizer=type(optimizer).__name__, **self._settings
        )
        if scheduler is not None:
            self._settings["scheduler"] = type(scheduler).__name__

        def buffers():
            return {name: _copy(value) for name, value in model.named_buffers()} or None

        taken = {"model_state": buffers()}  # before the forward pass of the step

        def before(stepped, args, kwargs):
            if self.is_full:
                return
            state = None
            if self.count == 0:
                state = stepped.state_dict() if stepped.state else None
                steps = [float(s["step"]) for s in stepped.state.values() if "step" in s]
                # SGD counts no steps; a scheduler may count epochs.
                steps = steps or [getattr(scheduler, "last_epoch", 0)]
                self.first = self.first or int(max(steps))
            taken.update(
                params={name: _copy(value) for name, value in named.items()},
                grads={name: _copy(value.grad) for name, value in named.items()},
                state=copy.deepcopy(state),
                learning_rate={
                    _group_name(number, group): float(group["lr"])
                    for number, group in enumerate(stepped.param_groups)
                },
            )

        def after(stepped, args, kwargs):
            if self.is_full:
                return
            fields = dict(taken, new_params=named)
            taken["model_state"] = buffers()
            self._step_with_notes(fields)

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)
        return self

    def _step_with_notes(self, fields):
        fields.update(self._noted)
        self._noted.clear()
        self.step(**fields)

    @contextlib.contextmanager
    def flax(self, optim=None):
        """Within it every `Optimizer.apply_gradient` of flax.optim is recorded.

        `optim` is the module, `flax.optim` unless given. Inside of jit and pmap nothing can be
        recorded: return the gradients from the step and call `step()`.
        """
        if optim is None:
            from flax import optim
        cls, apply = optim.Optimizer, optim.Optimizer.apply_gradient

        def apply_gradient(optimizer, grads, *args, **kwargs):
            new = apply(optimizer, grads, *args, **kwargs)
            if self.is_full:
                return new
            definition = optimizer.optimizer_def
            if self.count == 0:
                names = {"optimizer": type(definition).__name__}
                self._settings = dict(_settings_of(definition), **dict(names, **self._settings))
                self._groups = _flax_groups(definition, optimizer.target)
                self.first = self.first or int(_step_of(optimizer.state))
            fields = dict(
                params=optimizer.target,
                grads=grads,
                new_params=new.target,
                state=optimizer.state if self.count == 0 and self.first else None,
                learning_rate=_flax_rates(definition, args, kwargs),
            )
            self._step_with_notes(fields)
            return new

        cls.apply_gradient = apply_gradient
        try:
            yield self
        finally:
            cls.apply_gradient = apply


def digest(batch):
    """Returns the text that stands for a batch that is too large, or private, to be recorded."""
    if isinstance(batch, str):
        return batch
    total = hashlib.sha256()
    for path, leaf in leaves_of(batch, "batch"):
        array, dtype = _array(leaf, _place("batch", path))
        total.update(_json([path, dtype, list(array.shape)]) + array.tobytes())
    return "sha256:" + total.hexdigest()


def leaves_of(tree, place, path=()):
    """Yields path and leaf; a path is of names, and of numbers in lists and tuples."""
    fields = getattr(type(tree), "__dataclass_fields__", None)
    if hasattr(tree, "_asdict"):
        items = list(tree._asdict().items())
    elif hasattr(tree, "items"):
        items = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, (list, tuple)):
        items = list(enumerate(tree))
    elif fields is not None:
        items = [(name, getattr(tree, name)) for name in fields]
    else:
        yield list(path), tree
        return
    if not items and place in _WITH_SCALARS:
        yield list(path), {}
    for key, value in items:
        for leaf in leaves_of(value, place, path + (key,)):
            yield leaf


def _array(leaf, place):
    """Returns an array of the bits on the host, and the name of the dtype."""
    kinds = [cls.__name__ for cls in type(leaf).__mro__]
    if "Tracer" in kinds or "SymbolicTensor" in kinds:
        raise RecorderError(
            "%s: expected an array, found a tracer: inside of jit and pmap nothing can be "
            "recorded. Return the gradients from the step and call rec.step(...) outside of it; "
            "without a change of the program, run it within jax.disable_jit()" % place
        )
    if "PmapSharding" in [type(getattr(leaf, "sharding", None)).__name__, *kinds] or any(
        "ShardedDeviceArray" in kind for kind in kinds
    ):
        raise RecorderError(_REPLICAS % place)
    if hasattr(leaf, "detach"):
        leaf = leaf.detach().cpu()
        if str(leaf.dtype) == "torch.bfloat16":
            bits = leaf.contiguous().view(sys.modules["torch"].int16).numpy()
            return bits.view(np.uint16).copy(), "bfloat16"
        leaf = leaf.numpy()
    if str(getattr(leaf, "dtype", "")).startswith("key<"):
        leaf = sys.modules["jax"].random.key_data(leaf)
    try:
        array = np.array(leaf)
    except Exception as error:
        raise RecorderError("%s: expected an array, found %s: %s" % (place, kinds[0], error))
    name = array.dtype.name
    if array.dtype.kind in "fiubc":
        return array, name
    if array.dtype.kind == "V" and not array.dtype.names and array.dtype.itemsize in (1, 2):
        return array.view("u%d" % array.dtype.itemsize), name  # bfloat16, float8: by their bits
    raise RecorderError("%s: expected an array of numbers, found %s" % (place, kinds[0]))


_REPLICAS = (
    "%s: expected one replica, found a leading axis of devices: record "
    "flax.jax_utils.unreplicate(...) of parameters, gradients and state"
)


def _check_replica(tree, leaves):
    """Raises an error where all parameters are copies along a leading axis of the devices."""
    jax = sys.modules.get("jax")
    devices = jax.local_device_count() if jax and tree == "params" else 1
    shapes = [np.shape(leaf) for _, leaf in leaves]
    if devices < 2 or not shapes or any(shape[:1] != (devices,) for shape in shapes):
        return
    arrays = [_array(leaf, _place(tree, path))[0] for path, leaf in leaves]
    if all((array == array[:1]).all() for array in arrays):
        raise RecorderError(_REPLICAS % _place(tree, leaves[0][0]))


def _copy(value):
    """A copy of what a framework changes in place: tensors and arrays, in dicts and lists."""
    if isinstance(value, dict):
        return {name: _copy(below) for name, below in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_copy, value))
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.detach().clone() if hasattr(value, "detach") else value


def _same(values, last):
    """True if both have the same paths, dtypes and bits."""
    return bool(values) and values.keys() == last.keys() and all(
        array.tobytes() == last[key][1][0].tobytes() and dtype == last[key][1][1]
        for key, (_, (array, dtype)) in values.items()
    )  # fmt: skip


def _number(value, place):
    _array(value, place)  # refuses what is no number
    return float(value.detach() if hasattr(value, "detach") else value)


def _rates(rate):
    if rate is None:
        return {}
    items = rate.items() if hasattr(rate, "items") else [("all", rate)]
    return {str(name): _number(value, "learning_rate") for name, value in items}


def _flax_rates(definition, args, kwargs):
    """The learning rate of a call of apply_gradient, or of each group."""
    params = args[0] if args else kwargs.get("hyper_params")
    params = definition.hyper_params if params is None else params
    is_list = isinstance(params, (list, tuple)) and not hasattr(params, "learning_rate")
    groups = {str(n): p for n, p in enumerate(params)} if is_list else {"all": params}
    rates = {name: getattr(p, "learning_rate", None) for name, p in groups.items()}
    if kwargs.get("learning_rate") is not None:
        rates = dict.fromkeys(rates, kwargs["learning_rate"])
    return {name: rate for name, rate in rates.items() if rate is not None}


def _flax_groups(definition, target):
    """Members and settings of the groups of a MultiOptimizer."""
    paths = {id(leaf): path for path, leaf in leaves_of(target, "params")}
    optimizers = getattr(definition, "sub_optimizers", ())
    return [
        {
            "name": str(number),
            "params": [paths[id(x)] for x in definition.traversals[number].iterate(target)],
            "settings": dict(_settings_of(part), optimizer=type(part).__name__),
        }
        for number, part in enumerate(optimizers)
    ]


def _settings_of(definition):
    params = definition.hyper_params  # of a MultiOptimizer a list, which has no fields
    return _plain({n: getattr(params, n) for n in getattr(params, "__dataclass_fields__", ())})


def _step_of(state):
    first = state[0] if isinstance(state, (list, tuple)) and not hasattr(state, "step") else state
    return _array(getattr(first, "step", 0), "state.step")[0]


def _plain(settings):
    """Settings that JSON has."""
    plain = {}
    for name, value in settings.items():
        if hasattr(value, "item") and np.ndim(value) == 0:
            value = value.item()
        if isinstance(value, (bool, int, float, str, type(None))):
            plain[name] = value
        elif isinstance(value, (list, tuple)) and all(isinstance(v, (int, float)) for v in value):
            plain[name] = list(value)
    return plain


def _group_name(number, group):
    return str(group.get("name", number))


def _place(tree, path):
    return tree + "".join("[%r]" % key for key in path)


def _json(value):
    return json.dumps(value).encode("utf-8")


def _index(recorder, meta):
    versions = {n: getattr(sys.modules.get(n), "__version__", None) for n in _FRAMEWORKS}
    return {
        "version": VERSION,
        "versions": {name: str(it) for name, it in versions.items() if it is not None},
        "python": platform.python_version(),
        "platform": "%s %s" % (platform.system(), platform.machine()),
        "first": recorder.first,
        "limit": recorder.steps,
        "dtypes": sorted({dtype for _, _, dtype in meta["arrays"]}),
        "names": meta["arrays"],
        "settings": _plain(recorder._settings),
        "groups": recorder._groups,
    }


def _process_index():
    jax, torch = sys.modules.get("jax"), sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    for name in ("process_index", "host_id"):
        if hasattr(jax, name):
            return getattr(jax, name)()
    return 0


def _size(count):
    return "%.3g GB" % (count / 1e9) if count >= 1e9 else "%.3g MB" % (count / 1e6)


def _write_whole(path, write):
    """Writes a file under another name first, so that a killed run leaves no half of one."""
    temporary = path + ".part"
    with open(temporary, "wb") as file:
        write(file)
    os.replace(temporary, path)
