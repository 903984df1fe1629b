"""tiedgpt: GPT-2 in NumPy with one switch, logits = x @ wte.T (tied) or x @ W_U (untied)."""

from .checkpoints import load_model, load_tokenizer, save_model
from .config import Config
from .errors import TiedGPTError
from .evaluation import score
from .generation import generate
from .model import GPT2
from .parameters import count_parameters
from .tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "GPT2",
    "Config",
    "TiedGPTError",
    "Tokenizer",
    "count_parameters",
    "generate",
    "load_model",
    "load_tokenizer",
    "save_model",
    "score",
]
