# pyright: strict
"""Trees: paths, partition specs, arrays stacked along an axis, and names for their types."""

from jax.sharding import PartitionSpec as PartitionSpec

from optax_bridge.spmd.trees.merging import cast_floats as cast_floats
from optax_bridge.spmd.trees.merging import check_jax_type as check_jax_type
from optax_bridge.spmd.trees.merging import (
    complete_partition_spec_tree as complete_partition_spec_tree,
)
from optax_bridge.spmd.trees.merging import non_empty_leaf_merge_fn as non_empty_leaf_merge_fn
from optax_bridge.spmd.trees.merging import raise_for_cycles as raise_for_cycles
from optax_bridge.spmd.trees.merging import (
    register_per_param_settings as register_per_param_settings,
)
from optax_bridge.spmd.trees.merging import safe_not as safe_not
from optax_bridge.spmd.trees.merging import tree_merge as tree_merge
from optax_bridge.spmd.trees.paths import flatten_items as flatten_items
from optax_bridge.spmd.trees.paths import get_recursively as get_recursively
from optax_bridge.spmd.trees.paths import is_none as is_none
from optax_bridge.spmd.trees.paths import match_regex_rules as match_regex_rules
from optax_bridge.spmd.trees.paths import prune_empty as prune_empty
from optax_bridge.spmd.trees.paths import prune_tree as prune_tree
from optax_bridge.spmd.trees.paths import set_recursively as set_recursively
from optax_bridge.spmd.trees.paths import shapes as shapes
from optax_bridge.spmd.trees.paths import tree_paths as tree_paths
from optax_bridge.spmd.trees.types import MeshAxes as MeshAxes
from optax_bridge.spmd.trees.types import Nested as Nested
from optax_bridge.spmd.trees.types import NestedOptParam as NestedOptParam
from optax_bridge.spmd.trees.types import NestedParameterSpec as NestedParameterSpec
from optax_bridge.spmd.trees.types import NestedPartitionSpec as NestedPartitionSpec
from optax_bridge.spmd.trees.types import NestedTensor as NestedTensor
from optax_bridge.spmd.trees.types import NestedTree as NestedTree
from optax_bridge.spmd.trees.types import Summable as Summable
from optax_bridge.spmd.trees.types import Tensor as Tensor
from optax_bridge.spmd.trees.types import TensorSpec as TensorSpec
from optax_bridge.spmd.trees.types import VDict as VDict
from optax_bridge.spmd.trees.types import current_mesh as current_mesh
from optax_bridge.spmd.trees.types import expand_vdicts as expand_vdicts
from optax_bridge.spmd.trees.types import vectorized_tree_map as vectorized_tree_map
