"""What the page asks for. A view takes a request's fields, calls the library, and returns what it
found.

Each view is a method of Views: view(query, step) -> a dict for JSON, or several. `query` is what
the page sent: mostly a model, its head and a text. The library checks its values, as for the
command line; what only a page sends is checked here. `step` is called between pieces of work: it
lets other requests compute, and raises if this one is not wanted any more. `step(part=0.4)` tells
the page how much is done. Below them: how symmetric a path is, and the source code that the page
shows.
"""

import base64
import inspect
import json
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from operator import methodcaller
from typing import Any

import numpy as np

from ..checkpoints.known_models import MODELS
from ..errors import ArgumentError, Range, short_repr
from ..fast.blas import one_blas_thread
from ..fast.products import most_rows
from ..gpt2.backward import embed_backward
from ..gpt2.checks import check_prompt_ids
from ..gpt2.model import GPT2, attend, mlp, unembed, unembedding
from ..gpt2.parameters import count_matrices, parameter_count
from ..gpt2.run import Tape
from ..gpt2.tokenizer import Tokenizer
from ..inference.sampling import Sampling
from ..inference.text import TextGeneration
from ..study import attribution, bigrams, gradients, paths, predictions, similarity, solved, toy
from ..study.corpus import Corpus

LISTED, COMPARED = 14, 8  # likeliest tokens: of the bars, and of an ablation's
LENS_TOKENS, MATRIX_TOKENS, ATTENTION_TOKENS = (
    8,
    7,
    32,
)  # of a prompt, the most that a picture shows
GRADIENT_TOKENS, GRADIENT_ROWS, ABSENT = 64, 10, 4  # read; rows for them, and for other tokens
NEAREST = 8
MEASURED, SAMPLE = (
    1024,
    512,
)  # a vocabulary larger than the first is measured by a sample of its tokens
PIECE, LOGITS = 128, 2**20  # tokens and logits that `symmetry` computes at once, at most
WRITTEN = {"n": Range(1, 200), "seed": Range(0, 2**32)}
SIZES = {"vocab": Range(1, 10**7), "dim": Range(1, 10**6), "total": Range(1, 10**15)}
CACHED = {"tape": 4, "logits": 32, "symmetry": 32, "solved": 8}  # results kept
PROMPTS = (  # four for the shipped models, whose vocabulary has these words as tokens, and four for others
    (
        "ROMEO:\nMy lord, I will not",
        "to be, or not to be",
        "What say you, my lord?",
        "I have been a man of",
    ),
    (
        "New York City is in New York",
        "Alan Turing theorized that computers would one day become",
        "The capital of France is Paris. The capital of Italy is",
        "In the United States of America, the United States",
    ),
)

Query = dict[str, Any]
Step = Callable[..., Any]


class Views:
    """One or two models with their names, their tokenizer, and the corpus that the page shows
    beside them."""

    def __init__(
        self,
        models: list[tuple[str, GPT2]],
        tokenizer: Tokenizer,
        corpus: tuple[str, Corpus] | None = None,
    ) -> None:
        self.names, self.models = zip(*models, strict=True)
        # Each model with the heads that it can use, its own first. A tied one has no W_U.
        self.by_head = [{model.config.head: model, "tied": model.tie()} for _, model in models]
        self.tokenizer = tokenizer
        self.corpus_name, self.corpus = corpus and corpus[0], corpus and corpus[1]
        self.prompts = PROMPTS[len(tokenizer.encode(" York")) == 1]
        self._results: dict[str, dict[Any, Any]] = {what: {} for what in CACHED}

    # The views

    def start(self, query: Query, step: Step) -> dict[str, Any]:
        models = []
        for name, model, by_head in zip(self.names, self.models, self.by_head, strict=True):
            size = parameter_count(model.config).total
            facts = {
                "name": name,
                "heads": [*by_head],
                "paths": [*paths.paths_of(model)],
                "parameters": size,
            }
            models.append({**facts, **vars(model.config), "others": None})
        example = {"words": toy.WORDS, "W_E": toy.EMBEDDING, "P": toy.TABLE}
        own = {"models": models, "corpus": self.corpus_name, "prompts": self.prompts}
        return {**own, "toy": example, "sources": sources()}

    def next(self, query: Query, step: Step) -> dict[str, Any]:
        """The likeliest next tokens, and what sampling makes of them."""
        whole, ids, sampling = self.text(query), self.prompt(query), sampling_of(query)
        logits = self.logits(self.model(query), ids, step)
        drawn = sampling.probabilities(logits)
        text = self.tokenizer.decode([t for t in whole if t < self.tokenizer.vocab_size])
        likeliest = predictions.predict(logits, paths.top_k(logits, LISTED))
        rows = [
            {**self.predicted(prediction), "drawn": drawn[prediction.token]}
            for prediction in likeliest
        ]
        by_model = np.exp(paths.log_probabilities(logits))
        kept = {"kept": np.count_nonzero(drawn), "kept_probability": by_model[drawn > 0].sum()}
        return {
            "text": text,
            "tokens": self.tokens(whole),
            "place": len(ids) - 1,
            "rows": rows,
            **kept,
        }

    def generate(self, query: Query, step: Step) -> Iterator[dict[str, Any]]:
        """What each token is and how likely it was, and at last the reason why there are no
        more."""
        ids = self.prompt(query)
        model = self.model(query)
        generation = TextGeneration(
            model=model,
            tokenizer=self.tokenizer,
            prompt_ids=ids,
            sampling=sampling_of(query),
            max_new_tokens=WRITTEN["n"].check("n", query.get("n")),
            seed=WRITTEN["seed"].check("seed", query.get("seed")),
        )
        sample = generation.samples[0]
        lines: list[dict[str, Any]] = []

        def record(_: int, logits: np.ndarray, token: int) -> None:
            (prediction,) = predictions.predict(logits, [token])
            line = self.predicted(prediction)
            line["bits"] = predictions.surprisal(prediction.log_probability)
            lines.append(line)

        with threads_for(ids):
            for _ in generation.steps(progress=step, record=record):
                if sample.finish_reason is None:  # else no token was added to the text
                    yield lines[-1]
                    step()
        reason = "end of text" if sample.finish_reason == "eos" else "length"
        yield {"end": reason, "bits_per_token": np.mean([line["bits"] for line in lines])}

    def path(self, query: Query, step: Step) -> dict[str, Any]:
        """One path's scores of the prompt's tokens after one another, and the text's own counts."""
        tokens = list(dict.fromkeys(reversed(self.prompt(query))))[:MATRIX_TOKENS][::-1]
        index, model, name = np.array(tokens), self.model(query), query.get("path")
        if name not in [
            *(known := paths.paths_of(model))
        ]:  # a list, because `name` may have no hash
            raise ArgumentError(f"path must be one of {', '.join(known)}, got {short_repr(name)}")
        text = None
        if corpus := self.corpus:
            counts = [[corpus.count(a, b) for b in tokens] for a in tokens]
            text = {
                "counts": counts,
                "percent": [[100 * corpus.share(a, b) for b in tokens] for a in tokens],
            }
        A = known[name](model, index)[:, index]
        rows = {"W_E": as_base64(model.W_E[index]), "W_U": as_base64(model.W_U.T[index])}
        return {"tokens": self.tokens(tokens), "text": text, "A": A, **rows}

    def symmetry(self, query: Query, step: Step) -> dict[str, Any]:
        """How symmetric the scores of each path are, and how many tokens predict themselves."""
        model, found = self.model(query), dict[str, Any]()
        tokens, known = measured_tokens(model), paths.paths_of(model)
        for name, path in known.items():
            part = partial(step, part=len(found) / len(known))
            measure = partial(symmetry_of, path, model, tokens, part)
            found[name] = self.once("symmetry", (*matrices(model), name), measure)
        text = self.corpus.self_prediction() if self.corpus else None
        return {"paths": found, "measured": tokens.size, "text": text}

    def solved(self, query: Query, step: Step) -> dict[str, Any]:
        """How far the direct path is from the corpus, and which part of that is the scale, head and
        rank."""
        model, corpus, done = self.model(query), self.corpus, count(1)
        if corpus is None:
            raise ArgumentError("there is no text to compare with; start with --corpus FILE")

        def progress(_: Any) -> None:
            step(part=min(1.0, next(done) / solved.STEPS))

        def fit() -> Any:
            return bigrams.bigrams(
                model, corpus, progress, solved.solved_paths(model, corpus, progress)
            )

        return {"missing": solved.missing(self.once("solved", matrices(model), fit) or {})}

    def nearest(self, query: Query, step: Step) -> dict[str, Any]:
        """The tokens nearest to the prompt's last one by W_E, and by W_U."""
        token, model = self.prompt(query)[-1], self.model(query)
        found = (similarity.nearest(rows, token, NEAREST) for rows in (model.W_E, model.W_U.T))
        W_E, W_U = (self.tokens(others, cosine=cosines) for others, cosines in found)
        return {"token": self.token(token), "W_E": W_E, "W_U": W_U}

    def toy(self, query: Query, step: Step) -> dict[str, Any]:
        W_E, P = small(query, "W_E"), small(query, "P")
        ways = toy.solve(W_E, P)  # raises for numbers that have no solution
        if query.get("solve_W_E"):
            W_E = toy.embedding_of(P, W_E.shape[1])
            ways = toy.solve(W_E, P)
        return {"W_E": W_E, "ways": {name: vars(way) for name, way in ways.items()}}

    def lens(self, query: Query, step: Step) -> dict[str, Any]:
        """What each layer predicts after each of the last tokens."""
        ids, model = self.prompt(query), self.model(query)
        layers = predictions.lens(model, ids, 3, LENS_TOKENS, self.tape(model, ids, step))
        rows = [zip(layer.tokens, layer.probabilities, strict=True) for layer in layers]
        cells = [[self.tokens(likeliest, probability=p) for likeliest, p in row] for row in rows]
        return {"tokens": self.tokens(ids[-LENS_TOKENS:]), "layers": cells}

    def parts(self, query: Query, step: Step) -> dict[str, Any]:
        """What each head, MLP and bias adds to a token's logit; the predictions without some of
        them."""
        ids, model, removed = self.prompt(query), self.model(query), query.get("removed", [])
        if not isinstance(removed, list):
            raise ArgumentError(f"removed must be a list of parts, got {short_repr(removed)}")
        edit = attribution.ablation(model.config, map(str, removed))
        logits = self.logits(model, ids, step)
        likeliest = paths.top_k(logits, LISTED)
        token = likeliest[0] if query.get("token") is None else query["token"]
        answer = {
            "parts": attribution.attribute(model, ids, token, tape=self.tape(model, ids, step)),
            "before": self.predicted(predictions.predict(logits, [token])[0]),
            "likeliest": self.tokens(likeliest),
        }
        if edit:
            step()
            without = unembed(model.final(ids, edit=edit)[-1], model.W_U)
            answer["after"] = self.predicted(predictions.predict(without, [token])[0])
            both = list(dict.fromkeys([*paths.top_k(without, COMPARED), *likeliest[:COMPARED]]))
            pairs = zip(
                predictions.predict(logits, both), predictions.predict(without, both), strict=True
            )
            answer["change"] = [{**self.predicted(a), "drawn": b.probability} for a, b in pairs]
        return answer

    def attention(self, query: Query, step: Step) -> dict[str, Any]:
        """The attention patterns of all heads for the last tokens, as numbers from 0 to 65535."""
        ids, model = self.prompt(query), self.model(query)
        if not model.config.n_layer:
            raise ArgumentError("this model has no layers, so it has no attention")
        tape = self.tape(model, ids, step)
        found = np.stack(
            [tape[f"attn.{n}.pattern"][0] for n in range(model.config.n_layer)]
        )  # [L, H, T, T]
        patterns = as_base64(np.rint(65535 * found), "<u2")
        return {"tokens": self.tokens(ids[-ATTENTION_TOKENS:]), "patterns": patterns}

    def gradient(self, query: Query, step: Step) -> dict[str, Any]:
        """The two gradients of one training step on the prompt, by row of wte."""
        ids, model = self.prompt(query)[-GRADIENT_TOKENS:], self.model(query)
        with one_blas_thread():
            found = gradients.gradients(model, ids)
        rows = found.by_row()
        absent = [t for t in paths.top_k(rows[1], len(set(ids)) + ABSENT).tolist() if t not in ids][
            :ABSENT
        ]
        listed = [*list(dict.fromkeys(ids))[-GRADIENT_ROWS:], *absent]
        embed, head, _, cosine = rows[:, listed]
        table = self.tokens(listed, embed=embed, head=head, cosine=cosine)
        sizes = {
            "reached": np.count_nonzero(rows[:2], axis=1),
            "read": len(ids),
            "absent": len(absent),
        }
        return {"loss": found.loss, "rows": table, **sizes, **found.whole()}

    def cost(self, query: Query, step: Step) -> dict[str, Any]:
        """The size of a vocabulary's matrices, and of the five GPT-2. Savings are of the untied
        model."""
        vocab, dim, total = (most.check(name, query.get(name)) for name, most in SIZES.items())

        def row(vocab: int, dim: int, tied: int) -> dict[str, Any]:
            untied = tied + (matrix := count_matrices(vocab, dim)["difference"])
            return {"tied": tied, "untied": untied, "saved_percent": 100 * matrix / untied}

        models = []
        for name, known in MODELS.items():
            config = known.config
            tied = parameter_count(config.with_head("tied")).total
            sizes = row(config.vocab_size, config.n_embd, tied)
            models.append({"name": name, **sizes})
        return {**row(vocab, dim, max(total, vocab * dim)), "models": models}

    # What several views do

    def model(self, query: Query) -> GPT2:
        """The model that the page asks about, with the head that it asks for."""
        side = Range(0, len(self.names) - 1).check("side", query.get("side", 0))
        heads = [*self.by_head[side]]
        head = query.get("head", heads[0])
        if head not in heads:  # a list, because `head` may have no hash
            raise ArgumentError(f"head must be one of {', '.join(heads)}, got {short_repr(head)}")
        return self.by_head[side][head]

    def text(self, query: Query) -> list[int]:
        """The ids of the page's text, given as ids or as text; they fit the context of each
        model."""
        ids = query.get("ids")
        if ids is None:
            if not isinstance(text := query.get("text"), str):
                raise ArgumentError(f"text must be a string, got {short_repr(text)}")
            ids = self.tokenizer.encode(text, special="text")
        for model in self.models:
            ids = check_prompt_ids(ids, model.config)
        return ids

    def prompt(self, query: Query) -> list[int]:
        """The ids up to the place that the page has chosen."""
        ids, place = self.text(query), query.get("place")
        return ids if place is None else ids[: Range(0, len(ids) - 1).check("place", place) + 1]

    def token(self, token: int) -> dict[str, Any]:
        """A token for display; an id that only pads the vocabulary has no text."""
        known = token < self.tokenizer.vocab_size
        return {
            "id": token,
            "text": self.tokenizer.token_text(int(token)) if known else f"[{token}]",
        }

    def tokens(self, ids: Iterable[int], **numbers: np.ndarray) -> list[dict[str, Any]]:
        """Tokens for display, each with its own of each of `numbers` [n]."""
        rows = (dict(zip(numbers, row, strict=True)) for row in zip(*numbers.values(), strict=True))
        return [{**self.token(token), **next(rows, {})} for token in ids]

    def predicted(self, prediction: predictions.Prediction) -> dict[str, Any]:
        numbers = {
            "probability": prediction.probability,
            "logit": prediction.logit,
            "rank": prediction.rank,
        }
        return {**self.token(prediction.token), **numbers}

    def logits(self, model: GPT2, ids: list[int], step: Step) -> np.ndarray:  # -> [V]
        final = self.tape(model, ids, step)["final"][0, -1]
        return self.once("logits", (*matrices(model), *ids), lambda: unembed(final, model.W_U))

    def tape(self, model: GPT2, ids: list[int], step: Step) -> Tape:
        """The activations of a prompt's last tokens. Both heads of a model read the prompt once."""

        def read() -> Tape:
            with threads_for(ids):
                tape = predictions.last_tape(model, ids, ATTENTION_TOKENS, step)
            shown = {
                name: x[..., -ATTENTION_TOKENS:].copy()
                for name, x in tape.items()
                if "pattern" in name
            }
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


def to_json(answer: Any) -> str:
    """An answer, with lists in place of arrays, and numbers in place of NumPy's."""
    return json.dumps(answer, allow_nan=False, default=methodcaller("tolist"))


def matrices(model: GPT2) -> tuple[int, int]:
    """Numbers that are equal for models with the same W_E, and with the same W_U."""
    return id(model.W_E), id(model.parameters.get("lm_head.weight", model.W_E))


def threads_for(ids: list[int]) -> AbstractContextManager[None]:
    """One BLAS thread for a prompt of many tokens: two wait for each other when the cores are
    busy."""
    return one_blas_thread() if len(ids) > most_rows() else nullcontext()


def as_base64(x: np.ndarray, dtype: str = "<f4") -> str:
    return base64.b64encode(x.astype(dtype).tobytes()).decode()


def sampling_of(query: Query) -> Sampling:
    """The Sampling of a request. null, or no value, turns top_k and top_p off."""
    return Sampling(query.get("temperature", 1.0), query.get("top_k"), query.get("top_p"))


def small(query: Query, name: str) -> np.ndarray:
    matrix = toy.as_matrix(name, query.get(name))
    if max(matrix.shape) > 8 or abs(matrix).max() > 100:
        raise ArgumentError(
            f"{name} must have at most 8 rows and columns, of numbers from -100 to 100"
        )
    return matrix


def symmetry_of(path: paths.Path, model: GPT2, tokens: np.ndarray, step: Step) -> dict[str, float]:
    """|A - A^T| / |A| of a path's scores A [n, n], and the share of tokens that score themselves highest."""
    rows, hits = [], 0
    size = min(PIECE, max(1, LOGITS // model.config.vocab_size))
    for piece in np.array_split(tokens, -(-tokens.size // size)):
        logits = path(model, piece)  # [m, V]
        hits += int((logits.argmax(axis=1) == piece).sum())
        rows.append(logits[:, tokens].astype(np.float64))
        step()
    A = np.concatenate(rows)
    norm = np.linalg.norm(A)
    asymmetry = np.linalg.norm(A - A.T) / norm if norm else 0.0
    return {"asymmetry": float(asymmetry), "self_prediction": hits / tokens.size}


def measured_tokens(model: GPT2) -> np.ndarray:  # -> [n]
    """All tokens, or SAMPLE of a large vocabulary, always the same."""
    V = model.config.vocab_size
    return np.sort(np.random.default_rng(0).permutation(V)[: V if V <= MEASURED else SAMPLE])


SHOWN = (  # the functions whose source code stands beside the pictures
    *(
        unembedding,
        unembed,
        paths.raw,
        symmetry_of,
        paths.mlp0,
        mlp,
        similarity.nearest,
        solved.fit_softmax,
    ),
    *(Sampling.probabilities, toy.solve, paths.final_logits, attribution.attribute, attend),
    *(gradients.head_backward, embed_backward, count_matrices),
)


def sources() -> dict[str, dict[str, Any]]:
    """For the name of each function, {"file", "line", "text"}; `line` is the number of its first
    line."""
    found = {}
    for function in SHOWN:
        lines, first = inspect.getsourcelines(function)
        file = function.__module__.replace(".", "/") + ".py"
        text = textwrap.dedent("".join(lines)).rstrip()
        found[function.__name__] = {"file": file, "line": first, "text": text}
    return found
