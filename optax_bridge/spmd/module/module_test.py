import copy
import hashlib
import inspect
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_bridge.recorded_test import refused
from optax_bridge.spmd.config import config_class
from optax_bridge.spmd.metrics import ImageSummary, WeightedSummary
from optax_bridge.spmd.module import (
    ChildNameConflictError,
    InvalidDescendantError,
    InvocationContext,
    Module,
    OutputConflictError,
    _global_context_stack,
    child_context,
    clone_context_stack,
    current_context,
    functional,
    install_context_stack,
    new_output_collection,
    nowrap,
    scan_in_context,
    set_current_context,
)
from optax_bridge.spmd.module.context import child_key


class Leaf(Module):
    def forward(self, x, *, depth=None):
        if depth is not None:
            self.add_module_output("frames", len(inspect.stack()) - depth)
        self.add_summary("sum", x.sum())
        self.add_module_output("output", x)
        self.add_state_update("w", self.state["w"] + 1)
        return x * self.state["w"]

    def key(self):
        return self.prng_key

    @nowrap
    def plain(self):
        return 7

    def _private(self):
        return self.state


class Middle(Module):
    def __init__(self, cfg, *, parent):
        super().__init__(cfg, parent=parent)
        self._add_child("leaf", Leaf.default_config())
        self._add_child("second", Leaf.default_config())

    def forward(self, x):
        return self.leaf(x, depth=len(inspect.stack()))

    def outside(self, x):
        above: Any = self.parent
        return above.other(x)

    def shared(self, x):
        above: Any = self.parent
        return above.leaf(x) + self.get_shared_module("common").state["w"]


class Root(Module):
    @config_class
    class Config(Module.Config):
        size: int = 1

    def __init__(self, cfg, *, parent):
        super().__init__(cfg, parent=parent)
        for name in ("middle", "leaf", "other"):
            self._add_child(name, (Middle if name == "middle" else Leaf).default_config())
        self._share_with_descendants(self.leaf, shared_module_name="common")

    def forward(self, x):
        return self.middle(x) + self.leaf(x)

    def grandchild(self, x):
        return self.middle.leaf(x)

    def grandchildren(self, x):
        return self.middle.leaf(x) + self.middle.second(x)

    def grandchild_twice(self, x):
        return self.middle.leaf(x) + self.middle.leaf(x)

    def twice(self, x):
        return self.leaf(x) + self.leaf(x)

    def twice_by_name(self, x):
        with child_context("first", module=self.leaf):
            y = self.leaf(x)
        with child_context("second", module=self.other):
            return y + self.other(x)

    def borrowed(self, x):
        return self.middle.shared(x)

    def not_shared(self, x):
        return self.middle.outside(x)

    def own_twice(self, x):
        self.grandchild(x)
        return self.is_training, self.inner(), self.inner()

    def inner(self):
        return self.path()

    def child_keys(self):
        return self.prng_key, self.prng_key, self.leaf.key(), self.other.key()

    def peek(self):
        return self.leaf._private()

    def scanned(self, xs, **kwargs):
        def body(carry, x):
            return carry + self.leaf(x), x

        return scan_in_context(body, carry=jnp.zeros(3), xs=xs, **kwargs)


def root() -> Any:
    return Root.default_config().set(name="root").instantiate(parent=None)


def state() -> Any:
    return {
        "middle": {"leaf": {"w": jnp.ones(3)}, "second": {"w": jnp.full(3, 4.0)}},
        "leaf": {"w": jnp.full(3, 2.0)},
        "other": {"w": jnp.full(3, 3.0)},
    }


X = jnp.arange(3.0)


def call(method="forward", inputs=(X,), module=None, **kwargs):
    kwargs = {"is_training": True, "drop_output_collections": (), **kwargs}
    module = root() if module is None else module
    return functional(module, jax.random.key(0), state(), inputs, method=method, **kwargs)


def test_tree():
    module = root()
    assert module.middle.leaf.path() == "root.middle.leaf"
    assert list(module.children) == ["middle", "leaf", "other"]
    assert module.middle.parent is module and module.parent is None
    assert str(module.leaf) == repr(module.leaf) == "Leaf@root.leaf"
    assert module.path_to_descendant_module(module.middle.leaf) == ["middle", "leaf"]
    assert module.path_to_descendant_module(module) == []
    with refused(InvalidDescendantError, "descendant"):
        module.leaf.path_to_descendant_module(module)
    with refused(AttributeError, "middl"):
        _ = module.middl
    assert str(inspect.signature(module.forward)) == "(x)"


@pytest.mark.parametrize(
    ("name", "config", "error"),
    [
        ("X", Leaf.default_config(), ValueError),
        ("a-b", Leaf.default_config(), ValueError),
        ("x", 3, TypeError),
        ("x", Leaf.default_config().set(name="y"), ValueError),
        ("leaf", Leaf.default_config(), ChildNameConflictError),
        ("forward", Leaf.default_config(), ChildNameConflictError),
    ],
)
def test_children_that_are_refused(name, config, error):
    with pytest.raises(error):
        root()._add_child(name, config)


def test_outputs_by_path():
    y, outputs = call()
    np.testing.assert_array_equal(y, 3 * X)
    assert outputs.summaries == {"middle": {"leaf": {"sum": 3}}, "leaf": {"sum": 3}}
    assert set(outputs.state_updates["middle"]["leaf"]) == {"w"}
    assert outputs.module_outputs["middle"]["leaf"]["frames"] <= 7
    assert call(drop_output_collections=("module_outputs",))[1].module_outputs == {}
    _, direct = call("grandchild")
    assert direct.summaries == {"middle": {"leaf": {"sum": 3}}}


def test_grandchildren():
    y, outputs = call("grandchildren")
    np.testing.assert_array_equal(y, 5 * X)
    assert outputs.summaries == {"middle": {"leaf": {"sum": 3}, "second": {"sum": 3}}}
    with refused(OutputConflictError, "leaf already present"):
        call("grandchild_twice")


def test_calls_within_a_call():
    assert call("own_twice")[0] == (True, "root", "root")
    with refused(OutputConflictError, r"leaf already present.*call a module multiple"):
        call("twice")
    y, outputs = call("twice_by_name")
    np.testing.assert_array_equal(y, 5 * X)
    assert set(outputs.summaries) == {"first", "second"}
    with refused(ValueError, r"Leaf@root.other is not below Middle@root.middle"):
        call("not_shared")
    with refused(RuntimeError, "belongs to another module"):
        call("peek", ())


def test_without_a_context():
    module = root()
    assert module.inner() == "root" and module.leaf.plain() == 7
    with refused(RuntimeError, "without a context"):
        _ = module.state


def test_errors_in_properties_are_theirs():
    class Broken(Leaf):
        @property
        def size(self):
            return self.config.sizes

    with refused(AttributeError, "sizes"):
        _ = Broken.default_config().set(name="b").instantiate(parent=None).size


def test_type_errors_name_the_module():
    with pytest.raises(TypeError) as caught:
        call("forward", (X, 1))
    assert caught.value.__notes__ == ["In forward(float32[3], int) of Root@root."]


def test_shared_modules():
    y, outputs = call("borrowed")
    np.testing.assert_array_equal(y, 2 * X + 2)
    assert outputs.summaries == {"middle": {"common": {"sum": 3}}}

    def loss(state):
        out, _ = functional(root(), None, state, (X,), method="borrowed", is_training=True)
        return out.sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(state())["leaf"]["w"], X + 1)
    module = root()
    with refused(ValueError, "common"):
        module._share_with_descendants(module.other, shared_module_name="common")
    with refused(InvalidDescendantError, r"ancestor that shares .*'nothing'"):
        module.get_shared_module("nothing")
    with refused(InvalidDescendantError, "state does not contain 'leaf'"):
        functional(module, None, {"middle": {}}, (X,), method="borrowed", is_training=True)


def test_keys():
    key, again, leaf, other = call("child_keys", ())[0]
    assert key == again and leaf != other
    assert leaf == jax.random.fold_in(key, _seed("leaf"))
    assert child_key(None, "leaf") is None
    assert _seed("layer0") == 1351577825


def _seed(name):
    return int(hashlib.md5(name.encode()).hexdigest(), 16) % (2**31 - 1)


def test_vmap():
    def one(state, x):
        return functional(root(), None, state, (x,), is_training=True)

    states = jax.tree.map(lambda w: jnp.stack([w, 2 * w]), state())
    y, outputs = jax.jit(jax.vmap(one))(states, jnp.stack([X, X]))
    np.testing.assert_array_equal(y, [3 * X, 6 * X])
    np.testing.assert_array_equal(outputs.summaries["leaf"]["sum"], [3, 3])


def test_functional_leaves_what_it_is_given():
    class Writer(Module):
        def forward(self, inputs):
            inputs["x"] = self.state["new"] = 1

    writer = Writer.default_config().set(name="w").instantiate(parent=None)
    state, inputs = {}, {"inputs": {}}
    functional(writer, None, state, inputs, is_training=False)
    assert (state, inputs) == ({}, {"inputs": {}})
    with refused(TypeError, r"One argument x is `\(x,\)`"):
        functional(writer, None, state, jnp.ones(1), is_training=False)  # type: ignore[arg-type]
    inputs["inputs"]["self"] = inputs
    with refused(ValueError, "cycle"):
        functional(writer, None, state, inputs, is_training=False)


def context(name="root", parent=None, module: Any = None, **kwargs) -> Any:
    values = {
        "state": state(),
        "is_training": True,
        "prng_key": None,
        "output_collection": new_output_collection(),
        **kwargs,
    }
    return InvocationContext(name=name, parent=parent, module=module, **values)


def test_current_context():
    outer, module = context(), root()
    inner = context("inner", outer)
    with refused(ValueError, "must be a root context"), set_current_context(inner):
        pass
    with set_current_context(outer):
        with refused(ValueError, "parent must match"), set_current_context(context()):
            pass
        with set_current_context(context("root", None, module), require_parent=False) as ctx:
            assert current_context() is ctx
            with child_context("leaf") as child:
                assert child.path() == "root.leaf"
                assert child.state is ctx.state["leaf"]
    assert current_context() is None


def test_children_of_a_context():
    ctx = context(module=root())
    assert ctx.add_child("same", module=ctx.module).state is ctx.state
    for overrides, match in (
        ({"parent": ctx}, "parent"),
        ({"module": ctx.module.middle.leaf}, "state"),
        ({}, "no child"),
    ):
        with refused(ValueError, match):
            ctx.add_child("x", **overrides)
    with refused(OutputConflictError, "same already present"):
        ctx.add_child("same", module=ctx.module)


def test_leaving_outputs():
    ctx = context()
    child = ctx.add_child("child", module=root(), state=None)
    with pytest.raises(ValueError):
        child.add_summary("picture", {"a": ImageSummary(jnp.zeros(2))})
    child.add_module_output("a", 1)
    with refused(OutputConflictError, "call a module multiple times"):
        child.add_module_output("a", 2)
    child.set_state_update((1, 2))
    assert ctx.get_state_updates() == {"child": (1, 2)} and child.get_state_updates() == (1, 2)
    assert ctx.get_module_outputs() == {"child": {"a": 1}}
    own = ctx.add_child("own", module=root(), state=None, output_collection=new_output_collection())
    own.set_state_update(3)
    assert "own" not in ctx.get_state_updates()


def test_functional_of_a_context():
    ctx = context(module=root())
    ctx.add_summary("before", 1)
    module = ctx.module

    def loss(x):
        y, outputs = ctx.functional(module.forward)(x)
        return y.sum(), outputs

    grads, outputs = jax.grad(loss, has_aux=True)(X)
    np.testing.assert_array_equal(grads, [3, 3, 3])
    assert set(outputs.summaries) == {"before", "middle", "leaf"}
    assert ctx.get_summaries() == {"before": 1}


def test_scan():
    xs = {"xs": jnp.ones((2, 3))}
    (carry, ys), outputs = call("scanned", (xs,))
    np.testing.assert_array_equal(carry, [4, 4, 4])
    assert ys.shape == (2, 3)
    assert outputs.summaries == {"iter0": {"leaf": {"sum": 3}}, "iter1": {"leaf": {"sum": 3}}}
    assert outputs.module_outputs["iter"]["leaf"]["output"].shape == (2, 3)
    assert outputs.state_updates["iter"]["leaf"]["w"].shape == (2, 3)


def test_scan_over_state():
    stacked = {"leaf": {"w": jnp.stack([jnp.ones(3), jnp.full(3, 5.0)])}}
    (carry, _), outputs = call(
        "scanned",
        {
            "xs": {"xs": jnp.ones((2, 3)), "state": stacked},
            "child_name_prefix": "layer",
            "merge_summaries": True,
            "remat_kwargs": {},
            "drop_output": lambda path: path == "module_outputs",
        },
    )
    np.testing.assert_array_equal(carry, [6, 6, 6])
    assert outputs.summaries == {"layer": {"leaf": {"sum": 6}}}
    assert outputs.module_outputs == {"layer": {}}


def test_scan_merges_summaries_by_accumulation():
    class Weighted(Module):
        def forward(self, xs):
            def body(carry, x):
                self.add_summary("mean", WeightedSummary(x, jnp.ones(())))
                return carry, None

            scan_in_context(body, carry=(), xs={"xs": xs}, merge_summaries=True)

    module = Weighted.default_config().set(name="w").instantiate(parent=None)
    _, outputs = functional(module, None, {}, (jnp.array([1.0, 3.0]),), is_training=True)
    merged = outputs.summaries["iter"]["mean"]
    assert (merged.mean, merged.weight) == (2, 2)


def test_scan_refuses():
    with refused(ValueError, "Expected current_context"):
        scan_in_context(lambda c, x: (c, x), carry=0, xs={})
    kwargs = {"xs": {"xs": jnp.ones((2, 3))}, "remat_kwargs": {"prevent_cse": True}}
    with refused(ValueError, "prevent_cse"):
        call("scanned", kwargs)


def test_a_copy_works_alike():
    module = root()
    other = copy.deepcopy(module)
    assert other.middle.parent is other and other is not module
    np.testing.assert_array_equal(call("borrowed", module=other)[0], call("borrowed")[0])


def test_threads_have_stacks_of_their_own():
    seen: dict[str, Any] = {}
    ctx = context(module=root())

    def run(stack):
        seen["same list"] = _global_context_stack.stack is main
        seen["id"] = _global_context_stack.thread_id
        try:
            ctx.module.leaf(X)
        except RuntimeError as error:
            seen["error"] = str(error)
        seen["functional"] = call("forward")[0]
        install_context_stack(stack)
        seen["installed"] = _global_context_stack.stack is stack
        seen["y"] = ctx.module.leaf(X)
        with refused(ValueError, "already"):
            install_context_stack([])

    main = _global_context_stack.stack
    with set_current_context(ctx):
        thread = threading.Thread(target=run, args=(clone_context_stack(),))
        thread.start()
        thread.join()
        assert current_context() is ctx
    assert seen["same list"] and seen["installed"]
    assert seen["id"] == threading.main_thread().ident
    assert "installed no stack" in seen["error"]
    np.testing.assert_array_equal(seen["functional"], 3 * X)
    np.testing.assert_array_equal(seen["y"], 2 * X)
    assert ctx.get_summaries() == {"leaf": {"sum": 3}}


def test_messages(caplog, capsys):
    module = Root.default_config().set(name="root", vlog=1).instantiate(parent=None)
    with caplog.at_level("INFO"):
        module.vlog(1, "x is %s", 3)
        module.vlog(2, "hidden")
        module.leaf.vlog(1, "hidden")
    assert caplog.messages == ["@root x is 3"]
    module.vprint(1, "y is {y}", y=jnp.ones(()))
    jax.effects_barrier()
    assert "module_test.py" in (printed := capsys.readouterr().out)
    assert printed.strip().endswith("root y is 1.0")


def test_a_parent_may_offer_its_childs_methods():
    class Front(Root):
        def _wrapped_methods_for_auto_child_context(self):
            inner = self.leaf._wrapped_methods_for_auto_child_context()
            return {**super()._wrapped_methods_for_auto_child_context(), "leaf_key": inner["key"]}

        def both(self):
            return self.leaf_key()

    front = Front.default_config().set(name="root").instantiate(parent=None)
    key, _ = functional(front, jax.random.key(0), {}, (), method="both", is_training=True)
    assert key == child_key(jax.random.key(0), "leaf")
