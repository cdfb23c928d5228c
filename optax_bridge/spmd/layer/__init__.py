"""Layers: modules with parameters, what these are made of, and the layers of a transformer."""

from optax_bridge.spmd.layer.attention import GroupedQueryAttention as GroupedQueryAttention
from optax_bridge.spmd.layer.attention import HeadsLinear as HeadsLinear
from optax_bridge.spmd.layer.attention import MultiheadAttention as MultiheadAttention
from optax_bridge.spmd.layer.base import BaseLayer as BaseLayer
from optax_bridge.spmd.layer.base import BaseModel as BaseModel
from optax_bridge.spmd.layer.base import CompositeTensorStats as CompositeTensorStats
from optax_bridge.spmd.layer.base import DefaultTensorStats as DefaultTensorStats
from optax_bridge.spmd.layer.base import TensorMaxAbs as TensorMaxAbs
from optax_bridge.spmd.layer.base import TensorRMSNorm as TensorRMSNorm
from optax_bridge.spmd.layer.base import TensorStats as TensorStats
from optax_bridge.spmd.layer.base import no_remat as no_remat
from optax_bridge.spmd.layer.basic import Dropout as Dropout
from optax_bridge.spmd.layer.basic import Embedding as Embedding
from optax_bridge.spmd.layer.basic import LayerNorm as LayerNorm
from optax_bridge.spmd.layer.basic import Linear as Linear
from optax_bridge.spmd.layer.basic import RMSNorm as RMSNorm
from optax_bridge.spmd.layer.basic import StochasticDepth as StochasticDepth
from optax_bridge.spmd.layer.parameters import PARAM_REGEXP_BIAS as PARAM_REGEXP_BIAS
from optax_bridge.spmd.layer.parameters import PARAM_REGEXP_SCALE as PARAM_REGEXP_SCALE
from optax_bridge.spmd.layer.parameters import PARAM_REGEXP_WEIGHT as PARAM_REGEXP_WEIGHT
from optax_bridge.spmd.layer.parameters import ConstantInitializer as ConstantInitializer
from optax_bridge.spmd.layer.parameters import DefaultInitializer as DefaultInitializer
from optax_bridge.spmd.layer.parameters import FactorizationSpec as FactorizationSpec
from optax_bridge.spmd.layer.parameters import FanAxes as FanAxes
from optax_bridge.spmd.layer.parameters import GaussianInitializer as GaussianInitializer
from optax_bridge.spmd.layer.parameters import Initializer as Initializer
from optax_bridge.spmd.layer.parameters import ParameterNoise as ParameterNoise
from optax_bridge.spmd.layer.parameters import ParameterSpec as ParameterSpec
from optax_bridge.spmd.layer.parameters import PerGroupInitializer as PerGroupInitializer
from optax_bridge.spmd.layer.parameters import RematSpec as RematSpec
from optax_bridge.spmd.layer.parameters import WeightInitializer as WeightInitializer
from optax_bridge.spmd.layer.parameters import constant_initializer as constant_initializer
from optax_bridge.spmd.layer.parameters import maybe_prepend_axis as maybe_prepend_axis
from optax_bridge.spmd.layer.third_party import ThirdPartyLayer as ThirdPartyLayer
from optax_bridge.spmd.layer.third_party import as_layer_config as as_layer_config
from optax_bridge.spmd.layer.transformer import RepeatedTransformerLayer as RepeatedTransformerLayer
from optax_bridge.spmd.layer.transformer import StackedTransformerLayer as StackedTransformerLayer
from optax_bridge.spmd.layer.transformer import (
    TransformerAttentionLayer as TransformerAttentionLayer,
)
from optax_bridge.spmd.layer.transformer import (
    TransformerFeedForwardLayer as TransformerFeedForwardLayer,
)
from optax_bridge.spmd.layer.transformer import TransformerLayer as TransformerLayer
from optax_bridge.spmd.layer.transformer import activation_fn as activation_fn
from optax_bridge.spmd.trees import Nested as Nested
from optax_bridge.spmd.trees import NestedTensor as NestedTensor
from optax_bridge.spmd.trees import PartitionSpec as PartitionSpec
from optax_bridge.spmd.trees import Tensor as Tensor
from optax_bridge.spmd.trees import TensorSpec as TensorSpec
