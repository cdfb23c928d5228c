"""Modules: trees of named objects, and the contexts in which their methods run."""

from optax_bridge.spmd.module.context import ChildNameConflictError as ChildNameConflictError
from optax_bridge.spmd.module.context import InvalidDescendantError as InvalidDescendantError
from optax_bridge.spmd.module.context import InvocationContext as InvocationContext
from optax_bridge.spmd.module.context import OutputCollection as OutputCollection
from optax_bridge.spmd.module.context import OutputConflictError as OutputConflictError
from optax_bridge.spmd.module.context import _global_context_stack as _global_context_stack
from optax_bridge.spmd.module.context import child_context as child_context
from optax_bridge.spmd.module.context import clone_context_stack as clone_context_stack
from optax_bridge.spmd.module.context import current_context as current_context
from optax_bridge.spmd.module.context import install_context_stack as install_context_stack
from optax_bridge.spmd.module.context import new_output_collection as new_output_collection
from optax_bridge.spmd.module.context import set_current_context as set_current_context
from optax_bridge.spmd.module.functional import functional as functional
from optax_bridge.spmd.module.functional import scan_in_context as scan_in_context
from optax_bridge.spmd.module.module import Module as Module
from optax_bridge.spmd.module.module import nowrap as nowrap
from optax_bridge.spmd.trees import Nested as Nested
from optax_bridge.spmd.trees import NestedTensor as NestedTensor
from optax_bridge.spmd.trees import Tensor as Tensor
