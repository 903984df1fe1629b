"""tiedgpt: GPT-2 in NumPy with one switch, logits = x @ wte.T (tied) or x @ W_U (untied).

Each name is imported when it is first used, so that `import tiedgpt` is quick.
"""

TYPE_CHECKING = False  # type checkers take it for typing.TYPE_CHECKING, which is slow to import
if TYPE_CHECKING:
    from .backward import loss_and_gradients
    from .checkpoints import load_model, load_tokenizer, save_model
    from .comparison.compare import compare
    from .comparison.conventions import from_state_dict
    from .config import Config
    from .errors import TiedGPTError
    from .inference.documents import generate_documents, score_documents
    from .inference.evaluation import score
    from .inference.generation import generate
    from .model import GPT2
    from .parameters import count_parameters
    from .tokenizer import Tokenizer

__version__ = "0.3.0"

__all__ = [
    "GPT2",
    "Config",
    "TiedGPTError",
    "Tokenizer",
    "compare",
    "count_parameters",
    "from_state_dict",
    "generate",
    "generate_documents",
    "load_model",
    "load_tokenizer",
    "loss_and_gradients",
    "save_model",
    "score",
    "score_documents",
]

_MODULES = {  # name -> the module it is imported from
    "GPT2": "model",
    "Config": "config",
    "TiedGPTError": "errors",
    "Tokenizer": "tokenizer",
    "compare": "comparison.compare",
    "count_parameters": "parameters",
    "from_state_dict": "comparison.conventions",
    "generate": "inference.generation",
    "generate_documents": "inference.documents",
    "load_model": "checkpoints",
    "load_tokenizer": "checkpoints",
    "loss_and_gradients": "backward",
    "save_model": "checkpoints",
    "score": "inference.evaluation",
    "score_documents": "inference.documents",
}


if not TYPE_CHECKING:  # or every name would be one to a type checker

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
