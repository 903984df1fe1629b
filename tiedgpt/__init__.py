"""tiedgpt: GPT-2 in NumPy with one switch, logits = x @ wte.T (tied) or x @ W_U (untied).

Each name is imported when it is first used, so that `import tiedgpt` is quick.
"""

TYPE_CHECKING = False  # type checkers take it for typing.TYPE_CHECKING, which is slow to import
if TYPE_CHECKING:  # X as X exports X
    from .backward import loss_and_gradients as loss_and_gradients
    from .checkpoints import load_model as load_model
    from .checkpoints import load_tokenizer as load_tokenizer
    from .checkpoints import save_model as save_model
    from .comparison.compare import compare as compare
    from .comparison.conventions import from_state_dict as from_state_dict
    from .config import Config as Config
    from .errors import TiedGPTError as TiedGPTError
    from .inference.documents import generate_documents as generate_documents
    from .inference.documents import score_documents as score_documents
    from .inference.evaluation import score as score
    from .inference.generation import generate as generate
    from .model import GPT2 as GPT2
    from .parameters import count_parameters as count_parameters
    from .tokenizer import Tokenizer as Tokenizer

__version__ = "0.3.0"

_MODULES = {  # a name -> the module it is imported from
    **dict.fromkeys(("load_model", "load_tokenizer", "save_model"), "checkpoints"),
    **dict.fromkeys(("generate_documents", "score_documents"), "inference.documents"),
    "GPT2": "model",
    "Config": "config",
    "TiedGPTError": "errors",
    "Tokenizer": "tokenizer",
    "compare": "comparison.compare",
    "count_parameters": "parameters",
    "from_state_dict": "comparison.conventions",
    "generate": "inference.generation",
    "loss_and_gradients": "backward",
    "score": "inference.evaluation",
}
__all__ = list(_MODULES)

if not TYPE_CHECKING:  # or every name would be one to a type checker

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __name__), name)
        return value


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
