# pyright: strict
"""Configs: descriptions of objects that are composed, checked and written before one is made.

A config class is made with `@config_class`, from a class by `config_for_class` or from a function
by `config_for_function`; `cfg.instantiate()` makes the object.
"""

from optax_bridge.spmd.config.base import ConfigBase as ConfigBase
from optax_bridge.spmd.config.base import InstantiableConfig as InstantiableConfig
from optax_bridge.spmd.config.base import config_class as config_class
from optax_bridge.spmd.config.instantiable import ClassConfigBase as ClassConfigBase
from optax_bridge.spmd.config.instantiable import ConfigModifier as ConfigModifier
from optax_bridge.spmd.config.instantiable import ConfigOr as ConfigOr
from optax_bridge.spmd.config.instantiable import Configurable as Configurable
from optax_bridge.spmd.config.instantiable import FunctionConfigBase as FunctionConfigBase
from optax_bridge.spmd.config.instantiable import config_for_class as config_for_class
from optax_bridge.spmd.config.instantiable import config_for_function as config_for_function
from optax_bridge.spmd.config.instantiable import maybe_instantiate as maybe_instantiate
from optax_bridge.spmd.config.instantiable import maybe_set_config as maybe_set_config
from optax_bridge.spmd.config.instantiable import with_overrides as with_overrides
from optax_bridge.spmd.config.overrides import OverrideError as OverrideError
from optax_bridge.spmd.config.overrides import apply_overrides as apply_overrides
from optax_bridge.spmd.config.text import ABSENT as ABSENT
from optax_bridge.spmd.config.text import ConfigDiff as ConfigDiff
from optax_bridge.spmd.config.text import diff as diff
from optax_bridge.spmd.config.text import from_debug_string as from_debug_string
from optax_bridge.spmd.config.values import REQUIRED as REQUIRED
from optax_bridge.spmd.config.values import InvalidConfigClassError as InvalidConfigClassError
from optax_bridge.spmd.config.values import InvalidConfigNameError as InvalidConfigNameError
from optax_bridge.spmd.config.values import InvalidConfigValueError as InvalidConfigValueError
from optax_bridge.spmd.config.values import (
    MissingConfigClassDecoratorError as MissingConfigClassDecoratorError,
)
from optax_bridge.spmd.config.values import NonConfigFieldError as NonConfigFieldError
from optax_bridge.spmd.config.values import Required as Required
from optax_bridge.spmd.config.values import RequiredFieldMissingError as RequiredFieldMissingError
from optax_bridge.spmd.config.values import RequiredFieldValue as RequiredFieldValue
from optax_bridge.spmd.config.values import UnknownFieldError as UnknownFieldError
from optax_bridge.spmd.config.values import register_validator as register_validator
from optax_bridge.spmd.config.values import similar_names as similar_names
from optax_bridge.spmd.config.values import (
    validate_config_field_name as validate_config_field_name,
)
from optax_bridge.spmd.config.values import (
    validate_config_field_value as validate_config_field_value,
)
