"""For callers of before, until they are converted."""

from .files import GENERATION_CONFIG as GENERATION_CONFIG
from .files import INDEX as INDEX
from .files import WEIGHTS as WEIGHTS
from .files import has_unembedding as open_directory
from .files import read_config_json as read_config_json
from .files import read_weight_map as read_weight_map

__all__ = ["open_directory"]
