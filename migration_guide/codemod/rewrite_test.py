"""What the rules write, what they leave alone, and what they leave to a person."""

import textwrap

import pytest

from migration_guide.codemod.results import Options, Rewritten
from migration_guide.codemod.rewrite import rewrite

IMPORTS = "import jax\nfrom flax import optim\n"


def _rewritten(body: str, options: Options | None = None) -> Rewritten:
    return rewrite(textwrap.dedent(body).lstrip("\n"), options or Options())


def settled(code: str, options: Options | None = None) -> Rewritten:
    """The result of a rewrite that is not refused, and which a second one does not change."""
    options = options or Options()
    result = rewrite(code, options)
    assert result.refused == ""
    assert rewrite(result.code, options).code == result.code
    return result


def _body(code: str) -> str:
    """Code without its imports."""
    lines = [x for x in code.splitlines() if not x.startswith(("import ", "from "))]
    return "\n".join(lines).strip()


# One pair a case: `opt` is an optimizer and `d` a definition in all of them.
SETUP = "d = optim.Adam(0.1)\nopt = d.create(p)\n"
REWRITES = {
    "target": ("x = opt.target", "x = opt.params"),
    "target-item": ("x = opt.target['policy'].a", "x = opt.params['policy'].a"),
    "apply": ("opt = opt.apply_gradient(g)", "opt = opt.apply_gradients(grads=g)"),
    "apply-keyword": ("opt.apply_gradient(grads=g)", "opt.apply_gradients(grads=g)"),
    "step": ("s = int(opt.state.step)", "s = int(opt.step)"),
    "frozen-dict-pop": (
        "rest, q = v.pop('params')",
        "rest, q = flax.core.pop(v, 'params')",
    ),
    "frozen-dict-copy": (
        "v = v.copy({'params': q})\nu = u.copy(add_or_replace=w)",
        "v = flax.core.copy(v, {'params': q})\nu = flax.core.copy(u, w)",
    ),
    "frozen-dict-of-a-variable": (
        "v = M().init(k, x)\nv = v.unfreeze()\n_, w = m.apply(v, x)\nw.unfreeze()",
        "v = M().init(k, x)\nv = flax.core.unfreeze(v)\n_, w = m.apply(v, x)\n"
        "flax.core.unfreeze(w)",
    ),
    "frozen-dict-of-a-function": (
        "def f(): return M().init(k, x)\nf().unfreeze()",
        "def f(): return M().init(k, x)\nflax.core.unfreeze(f())",
    ),
    "looked-up-by-a-literal": (
        "a.o = opt\ngetattr(a, 'o').target",
        "a.o = opt\ngetattr(a, 'o').params",
    ),
    "frozen-dict-unfreeze": (
        "a = m.init(k).unfreeze()\nb = v['params'].unfreeze()\nf(opt.target.pretty_repr())",
        "a = flax.core.unfreeze(m.init(k))\nb = flax.core.unfreeze(v['params'])\n"
        "f(flax.core.pretty_repr(opt.params))",
    ),
    "dict-pop": (
        "q = v.pop('params')\na, b = v.pop('x')\nf(v.pop('params'))\na, b, c = v.pop('params')",
        "q = v.pop('params')\na, b = v.pop('x')\nf(v.pop('params'))\na, b, c = v.pop('params')",
    ),
    "step-of-replicated": (
        "s = opt.state.step[0]",
        "s = opt.step[0]",
    ),
    "replace": ("opt = opt.replace(target=q)", "opt = opt.replace(params=q)"),
    "definition": ("e = opt.optimizer_def", "e = opt.tx"),
    "isinstance": ("isinstance(x, optim.Optimizer)", "isinstance(x, optax_bridge.TrainState)"),
    "annotation": (
        "def f(o: optim.Optimizer): return o.target",
        "def f(o: optax_bridge.TrainState): return o.params",
    ),
    "annotation-string": (
        "def f(o: 'optim.Optimizer'): return o.target",
        "def f(o: 'optax_bridge.TrainState'): return o.params",
    ),
    "annotation-definition": (
        "def f(o: optim.OptimizerDef): return o.create(p)",
        "def f(o: optax.GradientTransformation): "
        "return optax_bridge.TrainState.create(apply_fn=None, params=p, tx=o)",
    ),
    "through-tuple": ("a, (b, *c) = 1, (opt, 2)\nb.target", "a, (b, *c) = 1, (opt, 2)\nb.params"),
    "through-dict": ("m = {'a': opt}\nm['a'].target", "m = {'a': opt}\nm['a'].params"),
    "through-loop": ("for o in [opt]:\n    o.target", "for o in [opt]:\n    o.params"),
    "through-zip": (
        "for o, q in zip([opt], ps):\n    o.target",
        "for o, q in zip([opt], ps):\n    o.params",
    ),
    "through-field": ("s.opt = opt\ns.opt.target", "s.opt = opt\ns.opt.params"),
    "through-keyword": (
        "s = State(optimizer=opt)\ns.optimizer.target",
        "s = State(optimizer=opt)\ns.optimizer.params",
    ),
    "through-return": (
        "def f():\n    return opt, 1\nf()[0].target",
        "def f():\n    return opt, 1\nf()[0].params",
    ),
    "through-jit": (
        "@jax.jit\ndef f(o): return o.target\nf(opt)",
        "@jax.jit\ndef f(o): return o.params\nf(opt)",
    ),
    "through-pmap-name": (
        "def f(o): return o, o.target\npf = jax.pmap(f)\no2, _ = pf(opt)\no2.target",
        "def f(o): return o, o.params\npf = jax.pmap(f)\no2, _ = pf(opt)\no2.params",
    ),
    "through-lambda": ("(lambda o: o.target)(opt)", "(lambda o: o.params)(opt)"),
    "through-tree-map": (
        "o = jax.tree_map(lambda x: x[0], opt)\no.target",
        "o = jax.tree.map(lambda x: x[0], opt)\no.params",
    ),
    "through-conditional": (
        "o = opt if x else None\no.target",
        "o = opt if x else None\no.params",
    ),
    "through-walrus": ("if (o := opt): o.target", "if (o := opt): o.params"),
    "by-use": (
        "def f(o, g):\n    o = o.apply_gradient(g)\n    return o.target",
        "def f(o, g):\n    o = o.apply_gradients(grads=g)\n    return o.params",
    ),
    "definition-by-use": (
        "def f(e, q):\n    o = e.create(q)\n    return o.apply_gradient(q)",
        "def f(e, q):\n"
        "    o = optax_bridge.TrainState.create(apply_fn=None, params=q, tx=e)\n"
        "    return o.apply_gradients(grads=q)",
    ),
    "by-use-of-a-field": (
        "def f(s, g):\n    s.q.target\n    return s.q.apply_gradient(g)",
        "def f(s, g):\n    s.q.params\n    return s.q.apply_gradients(grads=g)",
    ),
    "compute-gradient": (
        "l, g = opt.compute_gradient(f)",
        "l, g = jax.value_and_grad(f)(opt.params)",
    ),
    "compute-gradient-aux": (
        "l, a, g = opt.compute_gradient(f)",
        "(l, a), g = jax.value_and_grad(f, has_aux=True)(opt.params)",
    ),
    "optimize": (
        "opt, l = opt.optimize(f)",
        "l, grads = jax.value_and_grad(f)(opt.params)\nopt = opt.apply_gradients(grads=grads)",
    ),
    "optimize-aux": (
        "opt, l, a = opt.optimize(f)",
        "(l, a), grads = jax.value_and_grad(f, has_aux=True)(opt.params)\n"
        "opt = opt.apply_gradients(grads=grads)",
    ),
    "unreplicated-again": (
        "o = opt.replicate()\no = o.apply_gradient(g)\no = jax_utils.unreplicate(o)\n"
        "x = serialization.to_bytes(o)",
        "o = flax.jax_utils.replicate(opt)\n"
        'o = o.apply_gradients(grads=jax.lax.pmean(g, axis_name="batch"))\n'
        "o = jax_utils.unreplicate(o)\nx = serialization.to_bytes(o)",
    ),
    "focus-by-position": (
        "o = d.create(p, t)\nq = d.create(p, focus=None)",
        "o = optax_bridge.TrainState.create(apply_fn=None, params=p, "
        "tx=optax_bridge.multi_optimizer((t, d)))\n"
        "q = optax_bridge.TrainState.create(apply_fn=None, params=p, tx=d)",
    ),
    "state-dict": ("opt.state_dict()", "flax.serialization.to_state_dict(opt)"),
    "restore-state": (
        "opt.restore_state(x)",
        "optax_bridge.checkpoints.from_state_dict(opt, x)",
    ),
    "restore-state-with-more": (
        "m = x['more']\nopt.restore_state(x)",
        "m = x['more']\noptax_bridge.checkpoints.from_state_dict("
        "opt, {name: value for name, value in x.items() if name != 'more'})",
    ),
    "restore-state-of-another-variable": (
        "def f(x): return x['more']\nopt.restore_state(x)",
        "def f(x): return x['more']\noptax_bridge.checkpoints.from_state_dict(opt, x)",
    ),
    "from-state-dict-with-more": (
        "from flax import serialization\nserialization.from_state_dict(opt, x)\n"
        "if 'step' in x: f(x.get('a'), x['b']['c'])",
        "optax_bridge.checkpoints.from_state_dict("
        "opt, {name: value for name, value in x.items() if name not in ('a', 'b')})\n"
        "if 'step' in x: f(x.get('a'), x['b']['c'])",
    ),
    "traversal-that-updates": (
        "k = optim.ModelParamTraversal(f)\nq = k.update(g, p)",
        "k = legacy_optim.ModelParamTraversal(f)\nq = k.update(g, p)",
    ),
    "unreplicate": ("opt.unreplicate()", "flax.jax_utils.unreplicate(opt)"),
    "replicate": (
        "o = opt.replicate(devices, 'i')\no = o.apply_gradient(g)",
        "o = flax.jax_utils.replicate(opt, devices=devices)\n"
        "o = o.apply_gradients(grads=jax.lax.pmean(g, axis_name='i'))",
    ),
    "replicate-saved": (
        "from flax import serialization\no = opt\n"
        "o = serialization.from_bytes(o, d)\no = o.replicate()\n"
        "o = o.apply_gradient(g)\nserialization.to_bytes(o)\nserialization.to_bytes({'o': o})\n"
        "serialization.to_bytes(flax.jax_utils.unreplicate(o))\n"
        "o = serialization.from_bytes(o, d)\no = o.restore_state(o.state_dict())",
        "o = opt\no = optax_bridge.checkpoints.from_bytes(o, d)\no = flax.jax_utils.replicate(o)\n"
        'o = o.apply_gradients(grads=jax.lax.pmean(g, axis_name="batch"))\n'
        "serialization.to_bytes(flax.jax_utils.unreplicate(o))\n"
        "serialization.to_bytes({'o': flax.jax_utils.unreplicate(o)})\n"
        "serialization.to_bytes(flax.jax_utils.unreplicate(o))\n"
        "o = flax.jax_utils.replicate("
        "optax_bridge.checkpoints.from_bytes(flax.jax_utils.unreplicate(o), d))\n"
        "o = flax.jax_utils.replicate(optax_bridge.checkpoints.from_state_dict("
        "flax.jax_utils.unreplicate(o), "
        "flax.serialization.to_state_dict(flax.jax_utils.unreplicate(o))))",
    ),
    "replicate-and-restore-what-nobody-sees": (
        "o = opt.replicate()\no = o.apply_gradient(g)\no = o.restore_state(*x)",
        "o = flax.jax_utils.replicate(opt)\n"
        'o = o.apply_gradients(grads=jax.lax.pmean(g, axis_name="batch"))\n'
        "o = o.restore_state(*x)",
    ),
    "replicate-through-pmap": (
        "def f(o, g): return o.apply_gradient(grads=g)\njax.pmap(f, 'batch')(opt.replicate(), g)",
        'def f(o, g): return o.apply_gradients(grads=jax.lax.pmean(g, axis_name="batch"))\n'
        "jax.pmap(f, 'batch')(flax.jax_utils.replicate(opt), g)",
    ),
    "create-in-its-own-name": (
        "def f(o, q):\n    o = o.create(q)\n    return o.apply_gradient(q)",
        "def f(o, q):\n"
        "    o = optax_bridge.TrainState.create(apply_fn=None, params=q, tx=o)\n"
        "    return o.apply_gradients(grads=q)",
    ),
    "dataclasses-replace": (
        "import dataclasses\no = dataclasses.replace(opt, target=q)",
        "o = dataclasses.replace(opt, params=q)",
    ),
    "leaves-of-a-tree": (
        "jax.tree.map(lambda o: o.target, {'a': [opt]}, is_leaf=f)",
        "jax.tree.map(lambda o: o.params, {'a': [opt]}, is_leaf=f)",
    ),
    "by-the-field-it-goes-into": (
        "class S:\n    o: optim.Optimizer\n\ndef f(e, q):\n    x = e.create(q)\n    return S(o=x)",
        "class S:\n    o: optax_bridge.TrainState\n\ndef f(e, q):\n"
        "    x = optax_bridge.TrainState.create(apply_fn=None, params=q, tx=e)\n    return S(o=x)",
    ),
    "through-default": (
        "def f(o=opt): return o.target\ng = lambda o=opt: o.target",
        "def f(o=opt): return o.params\ng = lambda o=opt: o.params",
    ),
    "beside-a-fallback": (
        "try:\n    import optax\nexcept ImportError:\n    optax = None\nopt.target",
        "try:\n    import optax\nexcept ImportError:\n    optax = None\nopt.params",
    ),
    "jit-create": (
        "jax.jit(d.create, backend='cpu')(p)",
        "jax.jit(lambda params: optax_bridge.TrainState.create("
        "apply_fn=None, params=params, tx=d), backend='cpu')(p)",
    ),
    "create-as-a-value": (
        "make = d.create",
        "make = lambda params: optax_bridge.TrainState.create(apply_fn=None, params=params, tx=d)",
    ),
    "focus": (
        "o = d.create(p, focus=t)",
        "o = optax_bridge.TrainState.create("
        "apply_fn=None, params=p, tx=optax_bridge.multi_optimizer((t, d)))",
    ),
    "tree-multimap": (
        "jax.tree_util.tree_multimap(f, a, b)",
        "jax.tree.map(f, a, b)",
    ),
    "index-update": (
        "jax.ops.index_update(a + b, jax.ops.index[1:, 0], y)",
        "(a + b).at[1:, 0].set(y)",
    ),
    "index-add": ("jax.ops.index_add(a, i, y)", "a.at[i].add(y)"),
    "index-list": (
        "i = [0, 1]\njax.ops.index_add(a, [0, 1], y), jax.ops.index_add(a, i, y)",
        "i = [0, 1]\na.at[jax.numpy.array([0, 1])].add(y), a.at[jax.numpy.array(i)].add(y)",
    ),
    "index-list-of-axes": (
        "jax.ops.index_add(a, [0, slice(2)], y), jax.ops.index_add(a, jax.ops.index[[0, 1]], y)\n"
        "jax.ops.index_add(a, [[0, 1], [1, 2]], y)",
        "a.at[tuple([0, slice(2)])].add(y), a.at[jax.numpy.array([0, 1])].add(y)\n"
        "a.at[tuple([[0, 1], [1, 2]])].add(y)",
    ),
    "index-alone": ("i = jax.ops.index[..., 0]", "i = jax.numpy.s_[..., 0]"),
    "trapezoid": (
        "from jax.numpy import trapz\nimport jax.numpy as jnp\ntrapz(x), jnp.trapz(x)",
        "jax.numpy.trapezoid(x), jnp.trapezoid(x)",
    ),
    "host": ("jax.host_id(), jax.host_ids()", "jax.process_index(), jax.process_indices()"),
    "init-state": ("s = d.init_state(p)", "s = d.init(p)"),
    "class-in-an-annotation": (
        "def f(d: optim.Adam): return d",
        "def f(d: optax.GradientTransformation): return d",
    ),
    "bracketed-class": ("x: (optim.Adam) = d", "x: (optax.GradientTransformation) = d"),
    "saved-before-it-is-replicated": (
        "from flax import serialization\nserialization.to_bytes(opt)\nopt = opt.replicate()\n"
        "opt.apply_gradient(g)",
        "serialization.to_bytes(opt)\nopt = flax.jax_utils.replicate(opt)\n"
        'opt.apply_gradients(grads=jax.lax.pmean(g, axis_name="batch"))',
    ),
}


def test_rewrites(subtests: pytest.Subtests):
    for case, (before, after) in REWRITES.items():
        with subtests.test(case):
            result = _rewritten(IMPORTS + SETUP + before)
            assert result.refused == ""
            assert [m for m in result.messages if m.by_hand] == []
            expected = (
                "d = optax.adam(0.1)\n"
                "opt = optax_bridge.TrainState.create(apply_fn=None, params=p, tx=d)\n" + after
            )
            assert _body(result.code) == expected
            assert "flax import optim" not in result.code


CONSTRUCTORS = {
    "positional": ("optim.Momentum(lr, 0.5)", "optax.sgd(lr, 0.5)"),
    "mixed": ("optim.Adam(1e-3, weight_decay=wd)", "optax.adamw(1e-3, weight_decay=wd)"),
    "no-decay": ("optim.Adam(1e-3, weight_decay=0)", "optax.adam(1e-3)"),
    "given-though-it-is-the-default": (
        "optim.Adam(learning_rate=lr, beta1=0.9, eps=1e-8)",
        "optax.adam(learning_rate=lr, b1=0.9, eps=1e-8)",
    ),
    "momentum-keeps-its-default": ("optim.Momentum(0.1)", "optax.sgd(0.1, momentum=0.9)"),
    "another-default": ("optim.RMSProp(lr)", "optax.rmsprop(lr, eps_in_sqrt=False)"),
    "one-setting-for-two": (
        "optim.AdaBelief(lr, eps=1e-8)",
        "optax.adabelief(lr, eps=1e-8, eps_root=1e-8)",
    ),
    "another-order": (
        "optim.LAMB(lr, 0.8, 0.9, 0.1)",
        "optax_bridge.lamb(lr, 0.8, 0.9, 0.1)",
    ),
    "coupled-decay": (
        "optim.Momentum(0.1, weight_decay=1e-4, nesterov=False)",
        "optax.chain(optax.add_decayed_weights(1e-4), "
        "optax.sgd(0.1, momentum=0.9, nesterov=False))",
    ),
    "no-rate": ("optim.Momentum(beta=0.8)", "optax_bridge.momentum(decay=0.8)"),
    "no-optax-equal": ("optim.LAMB(lr, beta2=0.9)", "optax_bridge.lamb(lr, b2=0.9)"),
    "nested": (
        "optim.WeightNorm(optim.GradientDescent(0.1), 0.5)",
        "optax_bridge.weight_norm(optax_bridge.sgd(0.1), 0.5)",
    ),
    "groups": (
        "optim.MultiOptimizer((a, optim.GradientDescent(0.1)), *more)",
        "optax_bridge.multi_optimizer((a, optax.sgd(0.1)), *more)",
    ),
    "traversal": (
        "optim.ModelParamTraversal(lambda path, _: 'w' in path)",
        "optax_bridge.path_mask(lambda path, _: 'w' in path)",
    ),
    "line-by-line": ("optim.Adam(\n    0.1,\n    0.8,\n)", "optax.adam(\n    0.1,\n    0.8,\n)"),
    "line-by-line-with-one-more": (
        "optim.Momentum(\n    0.1,\n    nesterov=True,\n)",
        "optax.sgd(\n    0.1,\n    nesterov=True,\n    momentum=0.9,\n)",
    ),
    "comments-stay": (
        "optim.GradientDescent(\n    0.1,  # found by search\n)",
        "optax.sgd(\n    0.1,  # found by search\n)",
    ),
}


def test_constructors(subtests: pytest.Subtests):
    for case, (before, after) in CONSTRUCTORS.items():
        with subtests.test(case):
            result = _rewritten(f"{IMPORTS}x = {before}\n")
            assert not any(message.by_hand for message in result.messages)
            assert _body(result.code) == f"x = {after}"


def test_a_rate_per_call_needs_the_exact_port():
    code = IMPORTS + SETUP + "opt = opt.apply_gradient(g, learning_rate=fn(opt.state.step))"
    body = _body(_rewritten(code).code)
    assert "d = optax_bridge.adam(0.1)" in body
    assert "opt.apply_gradients(grads=g, learning_rate=fn(opt.step))" in body
    body = _body(_rewritten(IMPORTS + SETUP + "opt, l = opt.optimize(f, learning_rate=lr)").code)
    assert "opt = opt.apply_gradients(grads=grads, learning_rate=lr)" in body


@pytest.mark.parametrize("given", ["**how", "*how", "grads=g, **how", "g, **how", "g, how"])
def test_arguments_that_may_hold_a_rate_need_the_exact_port(given: str):
    code = f"{IMPORTS}{SETUP}opt = opt.apply_gradient({given})\n"
    assert "d = optax_bridge.adam(0.1)" in _rewritten(code).code


def test_a_note_says_why_an_optimizer_is_not_public_optax(subtests: pytest.Subtests):
    step = "opt = opt.apply_gradient(g, learning_rate=lr)"
    for code, expected in {
        f"{SETUP}{step}": "optax_bridge.adam, not public Optax: steps give it hyper-parameters",
        "d = optim.LAMB(0.1)": "optax_bridge.lamb, not public Optax: LAMB: the nearest recipe",
        "d = optim.Adam(0.1)": "",
    }.items():
        with subtests.test(code):
            texts = [message.text for message in _rewritten(IMPORTS + code + "\n").messages]
            assert [text.startswith(expected) for text in texts] == [True] * bool(expected)
    assert not _rewritten(f"{IMPORTS}{SETUP}{step}\n", Options(recipe="exact")).messages


def test_what_would_overflow_a_parser_is_refused(subtests: pytest.Subtests):
    for opening in ["[", "(", "f(", "{1:", "-", "lambda: ", "x if ", "a."]:
        with subtests.test(opening):
            for count in (195, 300, 6000):
                for code in (
                    f"y = {opening * count}\n{IMPORTS}",
                    f"{IMPORTS}y = {opening * count}\n",
                ):
                    refused = rewrite(code, Options()).refused
                    assert refused.startswith(
                        ("cannot be parsed as Python: line", "nested too deeply")
                    )


def test_a_long_line_is_no_matter_and_data_is_left_with_a_message():
    numbers = ", ".join(["0.25"] * 2_000)
    code = f"from flax import optim\nx = optim.Adam(0.1)\ny = [{numbers}]\n"
    assert "optax.adam(" in rewrite(code, Options()).code
    image = f"{code}z = '{'A' * 700_000}'\n"
    assert "optax.adam(" in rewrite(image, Options()).code
    data = code.replace(numbers, ", ".join([numbers] * 60))
    result = rewrite(data, Options())
    assert (result.code, "move data into a file" in result.refused) == (data, True)


def test_dropped_replace_is_noted():
    code = f"{IMPORTS}o = optim.Adam(1.0).create(p)\no.target.replace(params=q)\n"
    assert "did nothing" in rewrite(code, Options()).messages[0].text
    assert rewrite(code.replace("o.target.", "p = o.target."), Options()).messages == ()
