"""tiedgpt: GPT-2 in NumPy with one switch, logits = x @ wte.T (tied) or x @ W_U (untied).

Each name is imported when it is first used, so that `import tiedgpt` is quick.
"""

# Type checkers take this for typing.TYPE_CHECKING. To import that would take 9 ms; `import tiedgpt`
# takes 2.
TYPE_CHECKING = False
if TYPE_CHECKING:  # `X as X` exports X
    from .checkpoints import from_state_dict as from_state_dict
    from .checkpoints import load_model as load_model
    from .checkpoints import load_tokenizer as load_tokenizer
    from .checkpoints import save_model as save_model
    from .comparison.compare import compare as compare
    from .comparison.tokens import compare_tokens as compare_tokens
    from .errors import TiedGPTError as TiedGPTError
    from .evaluation import score as score
    from .generation import generate as generate
    from .gpt2.backward import loss_and_gradients as loss_and_gradients
    from .gpt2.config import Config as Config
    from .gpt2.model import GPT2 as GPT2
    from .gpt2.parameters import count_parameters as count_parameters
    from .gpt2.tokenizer import Tokenizer as Tokenizer

__version__ = "0.6.0"

_MODULES = {  # a name -> the module it is imported from
    "GPT2": "gpt2.model",
    "Config": "gpt2.config",
    "TiedGPTError": "errors",
    "Tokenizer": "gpt2.tokenizer",
    "compare": "comparison.compare",
    "compare_tokens": "comparison.tokens",
    "count_parameters": "gpt2.parameters",
    "from_state_dict": "checkpoints",
    "generate": "generation",
    "load_model": "checkpoints",
    "load_tokenizer": "checkpoints",
    "loss_and_gradients": "gpt2.backward",
    "save_model": "checkpoints",
    "score": "evaluation",
}
__all__ = list(_MODULES)

if not TYPE_CHECKING:  # a type checker would take every name for one of the module's

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module = import_module(f".{_MODULES[name]}", __name__)
        value = getattr(module, name)
        globals()[name] = value  # the next use finds it without this function
        return value


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
