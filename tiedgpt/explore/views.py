"""What the page asks for. A view takes a request's fields, calls the library, and returns plain numbers.

Each view is a method of Views: view(query, step) -> a dict for JSON, or several. `query` is what the page
sent. The library checks its values, as for the command line; what only a page sends is checked here.
`step` is called between pieces of work: it lets other requests compute, and raises if this one is not wanted
any more. `step(part=0.4)` tells the page how much of a long computation is done.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from ..checkpoints.names import MODELS
from ..checks import check_ids, check_prompt
from ..config import HEADS
from ..errors import ArgumentError, Range, short_repr
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
from ..study.gradients import gradients
from ..study.lens import lens
from ..study.paths import paths_of, top_k
from ..study.predictions import Prediction, draw, last_tape, predict, surprisal
from ..study.similarity import nearest
from ..study.solved import STEPS, missing, solved_paths
from ..tokenizer import Tokenizer
from .source import sources
from .symmetry import measured_tokens, symmetry_of

LISTED, COMPARED = 14, 8  # likeliest tokens: of the bars, and of an ablation's
LENS_TOKENS, MATRIX_TOKENS, ATTENTION_TOKENS = 8, 7, 32  # of a prompt, the most that a picture shows
GRADIENT_TOKENS, GRADIENT_ROWS, ABSENT = 64, 10, 4  # read; rows for them, and for other tokens
NEAREST, MAX_NEW_TOKENS = 8, 200
CACHED = {"tape": 4, "logits": 32, "symmetry": 32, "solved": 8}  # results kept
PROMPTS = (  # four for the shipped models, whose vocabulary has these words as tokens, and four for others
    ("ROMEO:\nMy lord, I will not", "to be, or not to be", "What say you, my lord?", "I have been a man of"),
    (
        "New York City is in New York",
        "Alan Turing theorized that computers would one day become",
        "The capital of France is Paris. The capital of Italy is",
        "In the United States of America, the United States",
    ),
)

Query = dict[str, Any]
Step = Callable[..., Any]


@dataclass(frozen=True)
class Side:
    """One of the models on the page, with the heads that it can use, the checkpoint's own head first."""

    name: str
    models: dict[str, GPT2]


def sides_of(models: Sequence[tuple[str, GPT2]]) -> list[Side]:
    """A side for each model. An untied one can use wte.T too; a tied one has no W_U."""
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
        self.corpus, self.corpus_name = corpus, corpus_name if corpus else None
        self._results: dict[str, dict[Any, Any]] = {what: {} for what in CACHED}

    # The views

    def start(self, query: Query, step: Step) -> dict[str, Any]:
        """What the page needs once."""
        models = []
        for side, model in zip(self.sides, self.models({}), strict=True):
            config, (V, D) = model.config, model.W_E.shape
            count = count_parameters(config)[config.head]["total"]
            sizes = {"V": V, "D": D, "layers": config.n_layer, "n_head": config.n_head}
            sizes |= {"context": config.n_ctx, "parameters": count}
            models.append({"name": side.name, "heads": [*side.models], "paths": [*paths_of(model)], **sizes})
        example = {"words": toy.WORDS, "W_E": toy.EMBEDDING, "P": toy.TABLE}
        return {"models": models, "corpus": self.corpus_name, "toy": example, "prompts": self.prompts()}

    def source(self, query: Query, step: Step) -> dict[str, Any]:
        """The source code beside the pictures."""
        return sources()

    def next(self, query: Query, step: Step) -> dict[str, Any]:
        """The likeliest next tokens, and what sampling makes of them."""
        whole, ids, sampling = self.text(query), self.prompt(query), sampling_of(query)

        def side(model: GPT2) -> dict[str, Any]:
            drawn = draw(self.logits(model, ids, step), sampling, LISTED)
            rows = zip(drawn.predictions, drawn.probabilities, strict=True)
            listed = [{**self.predicted(prediction), "drawn": p} for prediction, p in rows]
            return {"rows": listed, "kept": drawn.kept, "kept_probability": drawn.kept_probability}

        text = self.tokenizer.decode([t for t in whole if t < self.tokenizer.vocab_size])
        place = len(ids) - 1
        return {"tokens": self.tokens(whole), "text": text, "place": place, **self.each(query, step, side)}

    def generate(self, query: Query, step: Step) -> Iterator[dict[str, Any]]:
        """Write with each model, a token of each in turn: what each token is and how likely it was."""
        ids, n = self.prompt(query), Range(1, MAX_NEW_TOKENS).check("n", query.get("n"))
        seed, sampling = Range(0, 2**32).check("seed", query.get("seed")), sampling_of(query)
        models = dict(enumerate(self.models(query)))
        if query.get("side") is not None:
            models = {query["side"]: self.model(query)}
        running = {side: self.write(model, ids, n, seed, sampling, step) for side, model in models.items()}
        with threads_for(ids):
            while running:
                for side, lines in list(running.items()):
                    step()
                    line = next(lines)
                    if "end" in line:
                        del running[side]
                    yield {"side": side, **line}

    def write(self, model: GPT2, ids: list[int], n: int, seed: int, sampling: Sampling, step: Step) -> Any:
        """A line for each token, and one with the reason why there are no more."""
        bits: list[float] = []
        chosen: list[Prediction] = []

        def record(_: int, logits: np.ndarray, token: int) -> None:
            chosen.extend(predict(logits, [token]))

        streams = random_streams(seed, 1)
        for ((token,),) in sample_steps(model, [ids], n, sampling, streams, progress=step, record=record):
            bits.append(surprisal(chosen[-1].log_probability))
            if token in model.config.eos_token_ids:
                break
            yield {**self.predicted(chosen[-1]), "bits": bits[-1]}
        reason = "length" if len(bits) == n and token not in model.config.eos_token_ids else "end of text"
        yield {"end": reason, "bits_per_token": float(np.mean(bits))}

    def path(self, query: Query, step: Step) -> dict[str, Any]:
        """One path's scores of the prompt's tokens after one another, and the text's own counts."""
        tokens = list(dict.fromkeys(reversed(self.prompt(query))))[:MATRIX_TOKENS][::-1]
        index = np.array(tokens)

        def side(model: GPT2) -> dict[str, Any]:
            paths, name = paths_of(model), query.get("path")
            if name not in [*paths]:
                raise ArgumentError(f"path must be one of {', '.join(paths)}, got {short_repr(name)}")
            rows = {"W_E": as_base64(model.W_E[index]), "W_U": as_base64(model.W_U.T[index])}
            return {"A": paths[name](model, index)[:, index].tolist(), **rows}

        text = None
        if corpus := self.corpus:
            counts = [[corpus.count(a, b) for b in tokens] for a in tokens]
            text = {"counts": counts, "percent": [[100 * corpus.share(a, b) for b in tokens] for a in tokens]}
        return {"tokens": self.tokens(tokens), "text": text, **self.each(query, step, side)}

    def symmetry(self, query: Query, step: Step) -> dict[str, Any]:
        """How symmetric the scores of each path are, and how many tokens predict themselves."""
        parts = count()

        def side(model: GPT2) -> dict[str, Any]:
            tokens, found = measured_tokens(model), {}
            for name, path in paths_of(model).items():
                part = next(parts) / len(self.sides) / len(paths_of(model))
                measure = partial(symmetry_of, path, model, tokens, partial(step, part=part))
                found[name] = self.once("symmetry", (*matrices(model), name), measure)
            return {"paths": found, "measured": tokens.size}

        text = self.corpus.self_prediction() if self.corpus else None
        return {"text": text, **self.each(query, step, side)}

    def solved(self, query: Query, step: Step) -> dict[str, Any]:
        """How far the direct path is from the corpus, and which part of that is the scale, head and rank."""
        if (corpus := self.corpus) is None:
            raise ArgumentError("there is no text to compare with; start with --corpus FILE")
        done = count(1)

        def progress(_: Any) -> None:
            step(part=min(1.0, next(done) / len(self.sides) / STEPS))

        def side(model: GPT2) -> dict[str, float] | None:
            work = lambda: bigrams(model, corpus, progress, solved_paths(model, corpus, progress))  # noqa: E731
            return missing(self.once("solved", matrices(model), work) or {})

        return {"tokens": int(corpus.frequent().size), **self.each(query, step, side)}

    def nearest(self, query: Query, step: Step) -> dict[str, Any]:
        """The tokens nearest to the prompt's last one by W_E, and by W_U."""
        token = self.prompt(query)[-1]

        def listed(rows: np.ndarray) -> list[dict[str, Any]]:
            pairs = zip(*nearest(rows, token, NEAREST), strict=True)
            return [{**self.token(other), "cosine": float(cosine)} for other, cosine in pairs]

        lists = self.each(query, step, lambda model: {"W_E": listed(model.W_E), "W_U": listed(model.W_U.T)})
        return {"token": self.token(token), **lists}

    def toy(self, query: Query, step: Step) -> dict[str, Any]:
        """The three words: the scores and predictions of each way to solve for them."""
        W_E, P = small(query, "W_E"), small(query, "P")
        solved = toy.solve(W_E, P)  # raises for numbers that have no solution
        if query.get("solve_W_E"):
            W_E = toy.embedding_of(P, W_E.shape[1])
            solved = toy.solve(W_E, P)
        listed = lambda x: x.tolist() if isinstance(x, np.ndarray) else x  # noqa: E731
        ways = {name: {key: listed(x) for key, x in vars(way).items()} for name, way in solved.items()}
        return {"W_E": W_E.tolist(), "ways": ways}

    def lens(self, query: Query, step: Step) -> dict[str, Any]:
        """What each layer predicts after each of the last tokens."""
        ids = self.prompt(query)

        def cell(tokens: np.ndarray, probabilities: np.ndarray) -> list[dict[str, Any]]:
            pairs = zip(tokens, probabilities, strict=True)
            return [{**self.token(token), "probability": float(p)} for token, p in pairs]

        def side(model: GPT2) -> dict[str, Any]:
            layers = lens(model, ids, 3, LENS_TOKENS, self.tape(model, ids, step))
            return {"layers": [[*map(cell, layer.tokens, layer.probabilities)] for layer in layers]}

        return {"tokens": self.tokens(ids[-LENS_TOKENS:]), **self.each(query, step, side)}

    def parts(self, query: Query, step: Step) -> dict[str, Any]:
        """What each head, MLP and bias adds to a token's logit; the predictions without some of them."""
        ids, model, removed = self.prompt(query), self.model(query), query.get("removed", [])
        if not isinstance(removed, list):
            raise ArgumentError(f"removed must be a list of parts, got {short_repr(removed)}")
        edit = ablation(model.config, map(str, removed))
        logits = self.logits(model, ids, step)
        likeliest = top_k(logits, LISTED)
        token = likeliest[0] if query.get("token") is None else query["token"]
        token = int(check_ids([token], model.config)[0])
        answer = {
            "parts": attribute(model, ids, token, tape=self.tape(model, ids, step)),
            "before": self.predicted(predict(logits, [token])[0]),
            "likeliest": self.tokens(likeliest),
        }
        if edit:
            step()
            without = unembed(model.final(ids, edit=edit)[-1], model.W_U)
            answer["after"] = self.predicted(predict(without, [token])[0])
            both = list(dict.fromkeys([*top_k(without, COMPARED), *likeliest[:COMPARED]]))
            pairs = zip(predict(logits, both), predict(without, both), strict=True)
            answer["change"] = [{**self.predicted(a), "drawn": b.probability} for a, b in pairs]
        return answer

    def attention(self, query: Query, step: Step) -> dict[str, Any]:
        """The attention patterns of all heads for the last tokens, as numbers from 0 to 65535."""
        ids, model = self.prompt(query), self.model(query)
        if not model.config.n_layer:
            raise ArgumentError("this model has no layers, so it has no attention")
        tape = self.tape(model, ids, step)
        found = np.stack([tape[f"attn.{n}.pattern"][0] for n in range(model.config.n_layer)])  # [L, H, T, T]
        patterns = as_base64(np.rint(65535 * found), "<u2")
        return {"tokens": self.tokens(ids[-ATTENTION_TOKENS:]), "patterns": patterns}

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
        reached = np.count_nonzero(rows[:2], axis=1).tolist()
        sizes = {"reached": reached, "read": len(ids), "absent": len(absent), "V": rows.shape[1]}
        return {"loss": found.loss, "rows": table, **sizes, **found.whole()}

    def params(self, query: Query, step: Step) -> dict[str, Any]:
        """The size of a vocabulary's matrices, and of the five GPT-2. Savings are of the untied model."""
        most = {"vocab": 10**7, "dim": 10**6, "total": 10**15}
        vocab, dim, total = (Range(1, n).check(name, query.get(name)) for name, n in most.items())
        tied = max(total, vocab * dim)
        sizes = {"yours": (tied, tied + count_matrices(vocab, dim)["difference"])}
        for name, (_, config) in MODELS.items():
            sizes[name] = tuple(count_parameters(config)[head]["total"] for head in HEADS)
        yours, *models = [
            {"name": name, "tied": tied, "untied": untied, "saved_percent": 100 * (untied - tied) / untied}
            for name, (tied, untied) in sizes.items()
        ]
        return {**yours, "models": models}

    # What several views do

    def models(self, query: Query) -> list[GPT2]:
        """The model of each side with the head that the page has chosen for it."""
        heads = query.get("heads") or [next(iter(side.models)) for side in self.sides]
        if not isinstance(heads, list) or len(heads) != len(self.sides):
            raise ArgumentError(f"heads must be a list of {len(self.sides)}, got {short_repr(heads)}")
        for side, head in zip(self.sides, heads, strict=True):
            if head not in [*side.models]:  # a list, because `head` may have no hash
                raise ArgumentError(f"{side.name} has no head {short_repr(head)}: {', '.join(side.models)}")
        return [side.models[head] for side, head in zip(self.sides, heads, strict=True)]

    def model(self, query: Query) -> GPT2:
        return self.models(query)[Range(0, len(self.sides) - 1).check("side", query.get("side", 0))]

    def each(self, query: Query, step: Step, side: Callable[[GPT2], Any]) -> dict[str, Any]:
        """{"sides": what `side` finds for the model of each side}."""
        found = []
        for model in self.models(query):
            step()
            found.append(side(model))
        return {"sides": found}

    def text(self, query: Query) -> list[int]:
        """The ids of the page's text, given as ids or as text; they fit the context of each model."""
        ids = query.get("ids")
        if ids is None:
            if not isinstance(text := query.get("text"), str):
                raise ArgumentError(f"text must be a string, got {short_repr(text)}")
            ids = self.tokenizer.encode(text, special="text")
        for model in self.models({}):
            ids = check_prompt(ids, model.config)
        return ids

    def prompt(self, query: Query) -> list[int]:
        """The ids up to the place that the page has chosen."""
        ids = self.text(query)
        place = query.get("place")
        return ids if place is None else ids[: Range(0, len(ids) - 1).check("place", place) + 1]

    def prompts(self) -> tuple[str, ...]:
        """The example prompts whose words are tokens of this vocabulary."""
        return PROMPTS[len(self.tokenizer.encode(" York")) == 1]

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
        """The logits after a prompt."""
        final = self.tape(model, ids, step)["final"][0, -1]
        return self.once("logits", (*matrices(model), *ids), lambda: unembed(final, model.W_U))

    def tape(self, model: GPT2, ids: list[int], step: Step) -> Tape:
        """The activations of a prompt's last tokens. Both heads of a model read the prompt once."""

        def read() -> Tape:
            with threads_for(ids):
                tape = last_tape(model, ids, ATTENTION_TOKENS, step)
            shown = {name: x[..., -ATTENTION_TOKENS:].copy() for name, x in tape.items() if "pattern" in name}
            return {**tape, **shown}

        return self.once("tape", (matrices(model)[0], *ids), read)

    def once(self, what: str, key: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
        """The result of `compute`, kept for later requests with this key."""
        results = self._results[what]
        if key not in results:
            results[key] = compute()
        if len(results) > CACHED[what]:
            del results[next(iter(results))]  # the oldest
        return results[key]


def matrices(model: GPT2) -> tuple[int, int]:
    """Numbers that are equal for models with the same W_E, and with the same W_U."""
    return id(model.W_E), id(model.parameters.get("lm_head.weight", model.W_E))


def threads_for(ids: list[int]) -> AbstractContextManager[None]:
    """One BLAS thread for a prompt of more than most_rows() tokens.

    BLAS's own threads wait for each other when another program uses the cores: 128 tokens of GPT-2 then took
    2.1 s with two threads and 0.5 s with one. Products of fewer rows do not use them (products.py).
    """
    return one_blas_thread() if len(ids) > most_rows() else nullcontext()


def as_base64(x: np.ndarray, dtype: str = "<f4") -> str:
    return base64.b64encode(x.astype(dtype).tobytes()).decode()


def sampling_of(query: Query) -> Sampling:
    """The Sampling of a request. null, or no value, turns top_k and top_p off."""
    return Sampling(query.get("temperature", 1.0), query.get("top_k"), query.get("top_p"))


def small(query: Query, name: str) -> np.ndarray:
    """A small matrix of a request."""
    matrix = toy.as_matrix(name, query.get(name))
    if max(matrix.shape) > 8 or abs(matrix).max() > 100:
        raise ArgumentError(f"{name} must have at most 8 rows and columns, of numbers from -100 to 100")
    return matrix
