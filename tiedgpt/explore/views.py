"""What the page asks for. A view takes a request's fields, calls the library, and returns plain numbers.

Each view is a method of Views: view(query, step) -> a dict for JSON. `query` is what the page sent, and is
checked here field by field. `step` is called between pieces of work: it lets other requests compute, and
raises if this one is not wanted any more.
"""

import base64
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from ..checkpoints.names import MODELS
from ..checks import check_prompt
from ..config import HEADS
from ..errors import ArgumentError, is_count, is_number, short_repr
from ..fast.blas import one_blas_thread
from ..fast.products import most_rows
from ..inference.generation import random_streams, sample_steps
from ..inference.sampling import Sampling
from ..model import GPT2, unembed
from ..parameters import count_matrices, count_parameters
from ..run import Tape
from ..study import toy
from ..study.attribution import ablation, attribute
from ..study.bigrams import bigrams
from ..study.corpus import Corpus
from ..study.direct_path import direct_path
from ..study.gradients import gradients
from ..study.lens import lens
from ..study.paths import raw, top_k
from ..study.predictions import Prediction, draw, last_tape, predict, surprisal
from ..study.similarity import nearest
from ..study.solved import missing, solved_paths
from ..tokenizer import Tokenizer
from .source import SOURCES, source

LISTED = 14  # likeliest tokens
LENS_TOKENS, MATRIX_TOKENS, ATTENTION_TOKENS = 8, 7, 32  # of a prompt, the most that a picture shows
GRADIENT_TOKENS = 64  # the last tokens of a prompt, which a training step reads
NEAREST = 8
GRADIENT_ROWS, ABSENT = 10, 4  # rows for tokens of the prompt, and for other tokens
MAX_NEW_TOKENS = 200
QUICK = 2**28  # V V D of a model whose whole matrix A is measured unasked: it takes less than a second
CACHED = {"tape": 4, "logits": 32, "lens": 32, "nearest": 32, "symmetry": 32, "solved": 32}  # results kept

Query = dict[str, Any]
Step = Callable[..., Any]


@dataclass(frozen=True)
class Side:
    """One of the two models on the page, with the heads that it can use, the checkpoint's own head first."""

    name: str
    models: dict[str, GPT2]
    is_copy: bool = False  # whether W_U is wte.T under another name


def sides_of(models: Sequence[tuple[str, GPT2]]) -> list[Side]:
    """The sides of one or two models. One model makes both sides: with wte.T, and with W_U.

    A tied model has no W_U; its other side is an untied copy, whose W_U shares the memory of wte.
    """
    if len(models) == 1:
        ((name, model),) = models
        if model.config.tied:
            shared = {**model.parameters, "lm_head.weight": model.W_E}
            untied = GPT2(model.config.with_head("untied"), shared)
            copy = Side(f"{name}, untied", {"untied": untied, "tied": model}, is_copy=True)
            return [Side(name, {"tied": model}), copy]
        tied = model.tie()
        with_wte = Side(f"{name}, with wte.T", {"tied": tied, "untied": model})
        return [with_wte, Side(name, {"untied": model, "tied": tied})]
    return [
        Side(name, {model.config.head: model, **({} if model.config.tied else {"tied": model.tie()})})
        for name, model in models
    ]


class Views:
    """The models, their tokenizer and the corpus that the page shows."""

    def __init__(
        self, sides: list[Side], tokenizer: Tokenizer, corpus: Corpus | None, corpus_name: str
    ) -> None:
        self.sides, self.tokenizer = sides, tokenizer
        self.corpus, self.corpus_name = corpus, corpus_name
        self._results: dict[str, OrderedDict[Any, Any]] = {what: OrderedDict() for what in CACHED}

    def start(self, query: Query, step: Step) -> dict[str, Any]:
        """What the page needs once."""
        models = []
        for side in self.sides:
            model = next(iter(side.models.values()))
            V, D = model.W_E.shape
            count = count_parameters(model.config)[model.config.head]["total"]
            facts = {"name": side.name, "heads": list(side.models), "parameters": count, "copy": side.is_copy}
            sizes = {"V": V, "D": D, "layers": model.config.n_layer, "n_head": model.config.n_head}
            models.append({**facts, **sizes, "context": model.config.n_ctx, "quick": V * V * D <= QUICK})
        example = {"words": toy.WORDS, "W_E": toy.EMBEDDING, "P": toy.TABLE}
        return {"models": models, "corpus": self.corpus_name if self.corpus else None, "toy": example}

    def next(self, query: Query, step: Step) -> dict[str, Any]:
        """The likeliest next tokens after a place of the prompt, and what sampling makes of them."""
        ids, sampling = self.prompt(query), sampling_of(query)
        place = whole(query, "place", 0, len(ids) - 1, default=len(ids) - 1)
        sides = []
        for model in self.models(query):
            drawn = draw(self.logits(model, ids[: place + 1], step), sampling, LISTED)
            rows = zip(drawn.predictions, drawn.probabilities, strict=True)
            listed = [{**self.predicted(prediction), "drawn": p} for prediction, p in rows]
            V = model.config.vocab_size
            mass = drawn.kept_probability
            sides.append({"rows": listed, "kept": drawn.kept, "kept_probability": mass, "V": V})
        return {
            "tokens": self.tokens(ids),
            "text": self.tokenizer.decode([t for t in ids if t < self.tokenizer.vocab_size]),
            "place": place,
            "sides": sides,
        }

    def generate(self, query: Query, step: Step) -> Iterator[dict[str, Any]]:
        """Write with one model or both, a token of each in turn: what each token is and how likely it was.

        A tied model and its copy, which share all arrays, write the same, so one text is for both sides.
        """
        ids, n = self.prompt(query), whole(query, "n", 1, MAX_NEW_TOKENS)
        seed, only = whole(query, "seed", 0, 2**32), query.get("side")
        if only is not None:
            whole(query, "side", 0, len(self.sides) - 1)
        given = sampling_of(query)
        running: dict[Any, Any] = {}
        for number, model in enumerate(self.models(query)):
            key = addresses(model.W_E, model.W_U)
            if only is None or number == only:
                if key not in running:
                    chosen: list[Prediction] = []
                    steps = sample_steps(
                        model,
                        [ids],
                        n,
                        given,
                        random_streams(seed, 1),
                        progress=step,
                        record=partial(self.record, chosen),
                    )
                    running[key] = ([], model, chosen, steps)
                running[key][0].append(number)
        with threads_for(ids):
            while running:
                for key, text in list(running.items()):
                    step()
                    line = self.write(*text[1:])
                    if "end" in line:
                        del running[key]
                    yield from ({"side": number, **line} for number in text[0])

    def record(self, chosen: list[Prediction], _: int, logits: np.ndarray, token: int) -> None:
        chosen += predict(logits, [token], 0)

    def write(self, model: GPT2, predictions: list[Prediction], steps: Iterator[Any]) -> dict[str, Any]:
        """The next token, or why there is none."""
        ((token,),) = next(steps, [[None]])
        if token is None or token in model.config.eos_token_ids:
            bits = [surprisal(prediction.log_probability) for prediction in predictions]
            reason = "length" if token is None else "end of text"
            return {"end": reason, "bits_per_token": float(np.mean(bits))}
        chosen = predictions[-1]
        return {**self.predicted(chosen), "bits": surprisal(chosen.log_probability)}

    def lens(self, query: Query, step: Step) -> dict[str, Any]:
        """What each layer predicts after each of the last tokens."""
        ids = self.prompt(query)
        sides = []
        for model in self.models(query):
            step()
            tape = self.tape(model, ids, step)
            find = partial(lens, model, ids, 3, LENS_TOKENS, tape)
            layers = self.once("lens", (model.W_E, model.W_U), ids, find)
            table = [
                [
                    [{**self.token(t), "probability": float(p)} for t, p in zip(ts, ps, strict=True)]
                    for ts, ps in zip(layer.tokens, layer.probabilities, strict=True)
                ]
                for layer in layers
            ]
            sides.append({"layers": table})
        return {"tokens": self.tokens(ids[-LENS_TOKENS:]), "sides": sides}

    def parts(self, query: Query, step: Step) -> dict[str, Any]:
        """What each head, MLP and bias adds to a token's logit; the prediction without some of them."""
        ids, model = self.prompt(query), self.model(query)
        removed = query.get("removed", [])
        if not isinstance(removed, list):
            raise ArgumentError(f"removed must be a list of parts, got {short_repr(removed)}")
        edit = ablation(model.config, map(str, removed))
        logits = self.logits(model, ids, step)
        first = int(top_k(logits, 1)[0])
        token = whole(query, "token", 0, model.config.vocab_size - 1, default=first)
        answer: dict[str, Any] = {
            "parts": attribute(model, ids, token, tape=self.tape(model, ids, step)),
            "before": self.predicted(predict(logits, [token])[0]),
            "likeliest": [self.token(other) for other in top_k(logits, LISTED)],
        }
        if edit:
            step()
            without = unembed(model.final(ids, edit=edit)[-1], model.W_U)
            answer["after"] = self.predicted(predict(without, [token])[0])
            answer["first_after"] = self.predicted(predict(without, top_k(without, 1))[0])
        return answer

    def attention(self, query: Query, step: Step) -> dict[str, Any]:
        """The attention pattern of one head, and those of all heads as bytes, for the last tokens."""
        ids, model = self.prompt(query), self.model(query)
        if not model.config.n_layer:
            raise ArgumentError("this model has no layers, so it has no attention")
        layer = whole(query, "layer", 0, model.config.n_layer - 1)
        head = whole(query, "head", 0, model.config.n_head - 1)

        tape = self.tape(model, ids, step)
        found = np.stack([tape[f"attn.{n}.pattern"][0] for n in range(model.config.n_layer)])  # [L, H, T, T]
        as_bytes = base64.b64encode(np.rint(255 * found).astype(np.uint8).tobytes()).decode()
        tokens = self.tokens(ids[-ATTENTION_TOKENS:])
        return {"tokens": tokens, "pattern": found[layer, head].tolist(), "all": as_bytes}

    def path(self, query: Query, step: Step) -> dict[str, Any]:
        """The scores A = W_E W_U of the prompt's tokens after one another, and the text's own counts."""
        tokens = list(dict.fromkeys(reversed(self.prompt(query))))[:MATRIX_TOKENS][::-1]
        index = np.array(tokens)
        sides = []
        for model in self.models(query):
            step()
            sides.append({"A": raw(model, index)[:, index].tolist()})
        text = None
        if corpus := self.corpus:
            counts = [[corpus.count(a, b) for b in tokens] for a in tokens]
            text = {"counts": counts, "percent": [[100 * corpus.share(a, b) for b in tokens] for a in tokens]}
        return {"tokens": self.tokens(tokens), "sides": sides, "text": text}

    def symmetry(self, query: Query, step: Step) -> dict[str, Any]:
        """How symmetric the whole matrix A is, and how many tokens it predicts after themselves."""
        sides = []
        for model in self.models(query):
            measure = partial(direct_path, model, self.corpus, step)
            sides.append(self.once("symmetry", (model.W_E, model.W_U), [], measure))
        return {"sides": sides, "text": self.corpus.self_prediction() if self.corpus else None}

    def solved(self, query: Query, step: Step) -> dict[str, Any]:
        """How far the direct path is from the corpus, and which part of that is the scale, head and rank."""
        if (corpus := self.corpus) is None:
            raise ArgumentError("there is no text to compare with; start with --corpus FILE")
        sides = []
        for model in self.models(query):

            def work(model: GPT2 = model) -> dict[str, float] | None:
                scores = bigrams(model, corpus, step, solved_paths(model, corpus, step))
                return missing(scores or {})

            sides.append(self.once("solved", (model.W_E, model.W_U), [], work))
        return {"sides": sides, "tokens": int(corpus.frequent().size)}

    def nearest(self, query: Query, step: Step) -> dict[str, Any]:
        """The tokens nearest to one token by W_E, and by W_U."""
        token = whole(query, "token", 0, min(m.config.vocab_size for m in self.models(query)) - 1)
        sides = []
        for model in self.models(query):
            lists = {}
            for name, rows in (("W_E", model.W_E), ("W_U", model.W_U.T)):
                step()
                find = partial(nearest, rows, token, NEAREST)
                found = zip(*self.once("nearest", (rows,), [token], find), strict=True)
                lists[name] = [{**self.token(other), "cosine": float(cosine)} for other, cosine in found]
            sides.append(lists)
        return {"token": self.token(token), "sides": sides}

    def gradient(self, query: Query, step: Step) -> dict[str, Any]:
        """The two gradients of one training step on the prompt, by row of wte."""
        ids, model = self.prompt(query)[-GRADIENT_TOKENS:], self.model(query)
        with one_blas_thread():
            found = gradients(model, ids)
        rows = found.by_row()
        absent = [t for t in top_k(rows[1], len(set(ids)) + ABSENT).tolist() if t not in ids][:ABSENT]
        listed = [*list(dict.fromkeys(ids))[-GRADIENT_ROWS:], *absent]
        keys = ("embed", "head", "both", "cosine")
        table = [{**self.token(t), **dict(zip(keys, rows[:, t].tolist(), strict=True))} for t in listed]
        reached = [int(np.count_nonzero(rows[n])) for n in (0, 1)]
        return {
            **{"loss": found.loss, "rows": table, "reached": reached, "read": len(ids), "V": rows.shape[1]},
            **found.whole(),
        }

    def toy(self, query: Query, step: Step) -> dict[str, Any]:
        """The three words: the scores and predictions of each way to solve for them."""
        W_E, P = (numbers(query, name) for name in ("W_E", "P"))
        if query.get("solve_W_E"):
            toy.solve(W_E, P)  # raises for numbers that have no solution
            W_E = toy.embedding_of(P, len(W_E[0])).tolist()
        listed = lambda x: x.tolist() if isinstance(x, np.ndarray) else x  # noqa: E731
        solved = toy.solve(W_E, P).items()
        ways = {name: {key: listed(x) for key, x in vars(way).items()} for name, way in solved}
        return {"W_E": W_E, "ways": ways}

    def params(self, query: Query, step: Step) -> dict[str, Any]:
        """The size of a vocabulary's matrices, and of the five GPT-2."""
        vocab, dim = whole(query, "vocab", 1, 10**7), whole(query, "dim", 1, 10**6)
        total = max(whole(query, "total", 1, 10**15), vocab * dim)
        models = []
        for name, (_, config) in MODELS.items():
            count = count_parameters(config)
            tied, untied = (count[head]["total"] for head in HEADS)
            saved = 100 * (untied - tied) / untied  # as `tiedgpt params` prints it
            models.append({"name": name, "tied": tied, "untied": untied, "saving_percent": saved})
        sizes = count_matrices(vocab, dim, total)
        return {"total": total, "untied_total": total + sizes["difference"], **sizes, "models": models}

    def source(self, query: Query, step: Step) -> dict[str, Any]:
        """The source code beside the pictures."""
        return {name: source(name) for name in SOURCES}

    # What several views do

    def models(self, query: Query) -> list[GPT2]:
        """The model of each side with the head that the page has chosen for it."""
        heads = query.get("heads") or list(repeat(None, len(self.sides)))
        if not isinstance(heads, list) or len(heads) != len(self.sides):
            raise ArgumentError(f"heads must be a list of {len(self.sides)}, got {short_repr(heads)}")
        found = []
        for side, head in zip(self.sides, heads, strict=True):
            if head is not None and (not isinstance(head, str) or head not in side.models):
                raise ArgumentError(f"{side.name} has no head {short_repr(head)}: {', '.join(side.models)}")
            found.append(side.models[head or next(iter(side.models))])
        return found

    def model(self, query: Query) -> GPT2:
        return self.models(query)[whole(query, "side", 0, len(self.sides) - 1, default=0)]

    def prompt(self, query: Query) -> list[int]:
        """The prompt's ids, from the ids or the text in a request; they fit the context of each model."""
        ids = query.get("ids")
        if ids is None:
            text = query.get("text")
            if not isinstance(text, str):
                raise ArgumentError(f"text must be a string, got {short_repr(text)}")
            ids = self.tokenizer.encode(text, special="text")
        elif not isinstance(ids, list) or not all(is_count(token) for token in ids):
            raise ArgumentError(f"ids must be a list of token ids, got {short_repr(ids)}")
        for model in self.models({}):
            ids = check_prompt(ids, model.config)
        return ids

    def token(self, token: int) -> dict[str, Any]:
        """A token for display; an id that only pads the vocabulary has no text."""
        known = token < self.tokenizer.vocab_size
        return {"id": int(token), "text": self.tokenizer.token_text(int(token)) if known else f"[{token}]"}

    def tokens(self, ids: Iterable[int]) -> list[dict[str, Any]]:
        return [self.token(token) for token in ids]

    def predicted(self, prediction: Prediction) -> dict[str, Any]:
        numbers = {"probability": prediction.probability, "logit": prediction.logit, "rank": prediction.rank}
        return {**self.token(prediction.token), **numbers}

    def logits(self, model: GPT2, ids: list[int], step: Step) -> np.ndarray:  # -> [V]
        """The logits after a prompt. Sides that share their blocks read it once."""
        final = self.tape(model, ids, step)["final"][0, -1]
        return self.once("logits", (model.W_E, model.W_U), ids, lambda: unembed(final, model.W_U))

    def tape(self, model: GPT2, ids: list[int], step: Step) -> Tape:
        """The activations of a prompt's last tokens. Sides that share their blocks read the prompt once."""

        def read() -> Tape:
            with threads_for(ids):
                tape = last_tape(model, ids, ATTENTION_TOKENS, step)
            shown = {name: x[..., -ATTENTION_TOKENS:].copy() for name, x in tape.items() if "pattern" in name}
            return {**tape, **shown}

        return self.once("tape", (model.W_E,), ids, read)

    def once(
        self, what: str, arrays: tuple[np.ndarray, ...], ids: Sequence[int], compute: Callable[[], Any]
    ) -> Any:
        """The result of `compute`, kept for later requests with these arrays and ids."""
        results, key = self._results[what], (addresses(*arrays), *ids)
        if key not in results:
            results[key] = compute()
        results.move_to_end(key)
        while len(results) > CACHED[what]:
            results.popitem(last=False)
        return results[key]


def addresses(*arrays: np.ndarray) -> tuple[int, ...]:
    """Where arrays are in memory: sides that share their arrays share results."""
    return tuple(array.__array_interface__["data"][0] for array in arrays)


def threads_for(ids: list[int]) -> AbstractContextManager[None]:
    """One BLAS thread for a prompt of more than most_rows() tokens.

    BLAS's own threads wait for each other when another program uses the cores: 128 tokens of GPT-2 then took
    2.1 s with two threads and 0.5 s with one. Products of fewer rows do not use them (products.py).
    """
    return one_blas_thread() if len(ids) > most_rows() else nullcontext()


def sampling_of(query: Query) -> Sampling:
    """The Sampling of a request. null, or no value, turns top_k and top_p off."""
    temperature = query.get("temperature", 1.0)
    if not is_number(temperature) or not 0.01 <= temperature <= 100:
        raise ArgumentError(f"temperature must be a number from 0.01 to 100, got {short_repr(temperature)}")
    return Sampling(temperature, query.get("top_k"), query.get("top_p"))


def whole(query: Query, name: str, least: int, most: int, default: int | None = None) -> int:
    """A whole number of a request, from least to most."""
    value: Any = query.get(name)
    value = default if value is None else value
    if not is_count(value, least) or value > most:
        raise ArgumentError(f"{name} must be a whole number from {least} to {most}, got {short_repr(value)}")
    return int(value)


def numbers(query: Query, name: str) -> list[list[float]]:
    """A small matrix of a request."""
    value = query.get(name)
    rows = value if isinstance(value, list) else []
    if not 2 <= len(rows) <= 8 or not all(isinstance(row, list) and 1 <= len(row) <= 8 for row in rows):
        raise ArgumentError(f"{name} must be 2 to 8 rows of 1 to 8 numbers, got {short_repr(value)}")
    if not all(is_number(x) and abs(x) <= 100 for row in rows for x in row):
        raise ArgumentError(f"{name} must have numbers from -100 to 100 only")
    return rows
