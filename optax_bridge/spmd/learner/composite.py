"""Several learners, each for its own parameters."""

from collections.abc import Sequence

import jax
import optax

from optax_bridge.metadata.trees import Params, PyTree
from optax_bridge.spmd.config import REQUIRED, Required, config_class
from optax_bridge.spmd.learner.data import Updates
from optax_bridge.spmd.learner.learner import BaseLearner, Learner, _apply_updates
from optax_bridge.spmd.module import Module
from optax_bridge.spmd.trees import (
    flatten_items,
    match_regex_rules,
    register_per_param_settings,
    tree_paths,
)


class CompositeLearner(BaseLearner):
    """Gives each parameter to the learner that the rules name, all in one step.

    Its state has the state of each learner by name, and "ema" if an average is kept. A learner
    sees the whole tree, with `optax.MaskedNode()` for what is not its own.
    """

    @config_class
    class Config(BaseLearner.Config):
        """Configures CompositeLearner.

        Attributes:
          learners: name -> config of a learner, which itself keeps no average.
          rules: pairs of a regular expression for whole '/'-joined paths and a learner's name; the
            first that fits.
        """

        learners: Required[dict[str, Learner.Config]] = REQUIRED
        rules: Required[Sequence[tuple[str, str]]] = REQUIRED

    def __init__(self, cfg: Config, *, parent: Module | None):
        """Makes the learners.

        Raises:
          ValueError: a rule names no learner, or a learner has what only the whole can have.
        """
        super().__init__(cfg, parent=parent)
        for pattern, name in cfg.rules:
            if name not in cfg.learners:
                raise ValueError(
                    f"{self.path()}: rule {pattern!r}: {name!r} is not found in the known learners "
                    f"{sorted(cfg.learners)}"
                )
        for name, learner in cfg.learners.items():
            if name == "ema":
                raise ValueError(
                    f"{self.path()}: Sublearner name cannot be ema, a part of the state"
                )
            for field, value in (
                ("ema.decay", learner.ema.decay),
                ("forward_fn_transformation", learner.forward_fn_transformation),
            ):
                if value is not None:
                    raise ValueError(
                        f"{self.path()}: learner {name!r} has {field}, which is of all parameters: "
                        f"set it on {self.path()} itself"
                    )
            self._add_child(name, learner)

    def handles_undefined_loss(self) -> bool:
        """True if training goes on when the loss is not finite: if all learners say so."""
        return all(learner.handles_undefined_loss() for learner in self._learners().values())

    def should_update_with_optimizers(self, model_params: Params) -> PyTree:
        """For each parameter whether the optimizer of its learner changes it."""
        by_learner = self._by_part("should_update_with_optimizers", model_params)
        items = {path: keep for tree in by_learner.values() for path, keep in flatten_items(tree)}
        return jax.tree.map(items.__getitem__, tree_paths(model_params))

    def update(self, updates: Updates) -> Params:
        """Takes a step of each learner.

        Args:
          updates: parameters, gradients and in-place updates.

        Returns:
          The new parameters; the new states go out as state updates.
        """
        owners = self._owners(updates.opt_params)
        values = updates.param_values()
        new_params = jax.tree.map(lambda value: value, values)  # other containers
        for name, learner in self._learners().items():
            is_owned = jax.tree.map(lambda owner, name=name: owner == name, owners)
            part = updates.mask(
                lambda _, mask=is_owned: mask, fields=("opt_params", "delta_updates")
            )
            part = part.mask(
                lambda tree, name=name: jax.tree.map(
                    lambda path: self._owner(path) == name, tree_paths(tree)
                ),
                fields=("inplace_updates",),
            )
            _apply_updates(new_params, learner.update(part))
        deltas = jax.tree.map(lambda new, old: new - old, new_params, values)
        self._add_norms(updates.delta_updates, deltas)
        self._update_ema(new_params)
        return new_params

    def _learners(self) -> dict[str, Learner]:
        return {name: getattr(self, name) for name in self._config.learners}

    def _owner(self, path: str) -> str:
        return match_regex_rules(path, rules=self._config.rules) or ""

    def _owners(self, tree: PyTree) -> PyTree:
        """Returns the name of the learner of each parameter.

        Raises:
          ValueError: one has none.
        """
        owners = jax.tree.map(self._owner, tree_paths(tree))
        missing = [path for path, name in flatten_items(owners) if not name]
        if missing:
            raise ValueError(
                f"{self.path()}: Composite learner rules do not update all model params: none fits "
                f"{', '.join(missing)}. Add a rule; ('.*', name) fits all."
            )
        return register_per_param_settings(owners, description="learner_rule", path=self.path())

    def _by_part(self, method: str, tree: PyTree) -> dict[str, PyTree]:
        """Returns what a method gives of each learner's own parameters, by name."""
        owners = self._owners(tree)
        results = {}
        for name, learner in self._learners().items():
            masked = jax.tree.map(
                lambda owner, leaf, name=name: leaf if owner == name else optax.MaskedNode(),
                owners,
                tree,
            )
            # Of the class, as a context of the learner can be entered only once, by `update`.
            results[name] = getattr(type(learner), method)(learner, masked)
        return results
