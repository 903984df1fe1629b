"""tiedgpt as a model of EleutherAI's lm-evaluation-harness.

    pip install 'tiedgpt[eval]'
    lm_eval run --model tiedgpt --model_args pretrained=gpt2,head=untied --tasks lambada_openai

The harness finds models of other packages in versions after 0.4.13. With an older one, write
`python -m tiedgpt.lm_eval run` in place of `lm_eval run`.
"""

from typing import Any

import lm_eval.models  # noqa: F401  (registers the harness's own models)
import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from .checkpoints import load_model, load_tokenizer
from .errors import ArgumentError, TiedGPTError
from .gpt2.model import Array, unembed
from .gpt2.ops import cross_entropy
from .inference.documents import generate_documents


@register_model("tiedgpt")
class TiedGPT(TemplateLM):
    """`pretrained` and `head` are those of tiedgpt.load_model.

    The harness passes the last three arguments to every model. They are not used.
    """

    def __init__(
        self,
        pretrained: str = "gpt2",
        head: str | None = None,
        max_gen_toks: int = 256,
        batch_size: Any = None,
        max_batch_size: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.model = load_model(pretrained, head)
        self.tokenizer = load_tokenizer(pretrained)
        self.max_length = self.model.config.n_ctx
        self.max_gen_toks = max_gen_toks
        self.cache = self.model.new_cache()
        self.cached: list[int] = []  # the tokens in the cache

    @property
    def eot_token_id(self) -> int:
        if self.tokenizer.eot_id is None:
            raise ArgumentError(
                "the tokenizer has no <|endoftext|>, which begins a text without a context"
            )
        return self.tokenizer.eot_id

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """The ids of a text. GPT-2 adds no special tokens, so the flag for them is not used."""
        return self.tokenizer.encode(string, special="token")

    def final(self, ids: list[int], last: int) -> Array:  # [T] -> [last, D]
        """The input of the output matrix for the last tokens.

        The beginning that `ids` shares with the cached tokens is not read again.
        """
        # The last tokens are read in any case: the cache holds keys and values, not outputs.
        start = min(common_length(ids, self.cached), len(ids) - last)
        self.cache.length = start
        self.cached = []  # if reading is interrupted, the cache holds nothing
        final = self.model.final(ids[start:], self.cache)
        self.cached = ids
        return final[-last:]

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """For each request, the log probability of its continuation, and whether it is the greedy
        one. A request is a pair of texts, the ids of the context and those of the continuation."""
        results: dict[int, tuple[float, bool]] = {}
        # In this order, texts with the same beginning follow each other.
        order = sorted(range(len(requests)), key=lambda n: requests[n][1] + requests[n][2])
        for n in tqdm(order, disable=disable_tqdm, desc="Running loglikelihood requests"):
            _, context, continuation = requests[n]
            # The model does not read the last token, so one more than the context fits.
            ids = (context + continuation)[-(self.max_length + 1) :]
            targets = np.array(continuation[-self.max_length :])
            logits = unembed(self.final(ids[:-1], len(targets)), self.model.W_U)
            nats = cross_entropy(logits, targets).sum(dtype=np.float64)
            is_greedy = bool((logits.argmax(axis=-1) == targets).all())
            results[n] = (-float(nats), is_greedy)
        return [results[n] for n in range(len(requests))]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """The log probability of each text, its first token included.

        A text that is longer than the context is read in windows that predict each token once.
        """
        results = []
        for (text,) in (request.args for request in tqdm(requests, disable=disable_tqdm)):
            rolling = get_rolling_token_windows(
                self.tok_encode(text),
                self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            windows: list[tuple[Any, list[int], list[int]]] = []
            for window in rolling:
                context, continuation = make_disjoint_window(window)
                windows.append((None, context, continuation))
            scores = self._loglikelihood_tokens(windows, disable_tqdm=True)
            log_likelihoods = [log_likelihood for log_likelihood, _ in scores]
            results.append(sum(log_likelihoods, 0.0))  # an empty text has no window
        return results

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The text that continues each context. The number of the request is its seed."""
        results = []
        progress = tqdm(requests, disable=disable_tqdm, desc="Running generate_until requests")
        for n, (context, settings) in enumerate(request.args for request in progress):
            settings = normalize_gen_kwargs(settings, self.max_gen_toks)
            count = settings["max_gen_toks"]
            if count >= self.max_length:
                raise ArgumentError(
                    f"max_gen_toks is {count}; it must be less than the context of "
                    f"{self.max_length}"
                )
            # The prompt keeps the tokens that fit the context together with the new ones.
            kept = self.max_length - count
            ids = self.tok_encode(context)[-kept:]
            if not ids:
                ids = [self.prefix_token_id]
            stop = [text for text in settings["until"] if text]
            documents = generate_documents(
                self.model, self.tokenizer, [ids], count, seed=n, stop=stop, **sampling_of(settings)
            )
            samples = next(documents)
            if isinstance(samples, TiedGPTError):
                raise samples
            results.append(samples[0].text)
        return results


def sampling_of(settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of generate_documents for the harness's settings."""
    if settings["do_sample"] and settings["temperature"]:  # a temperature of 0 means greedy
        return {name: settings.get(name) for name in ("temperature", "top_k", "top_p")}
    return {"greedy": True}


def common_length(first: list[int], second: list[int]) -> int:
    """The number of tokens with which both lists begin."""
    length = 0
    for token, other in zip(first, second, strict=False):
        if token != other:
            break
        length += 1
    return length


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
