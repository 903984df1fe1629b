"""The well-known mistakes that `compare --vectors` plants, beside those of a forward pass.

ENCODERS and DECODERS are the mistakes in a tokenizer. A row says what follows "yours", and has the
function that makes the mistake: a lambda, or a function with a name if it needs several steps. What
is right is in gpt2/tokenizer.py alone. Tokens are spelled as in vocabulary files: a character
stands for each byte, "Ġ" for a space.

The others are made around a forward pass: in a batch, a KV cache, gradients, a step of AdamW. A
function that returns Results is such a list: it yields what is right, then what comes of each
mistake, with the sentence on it. To add a mistake, add a `yield`.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import regex

from ..gpt2.backward import loss_and_gradients
from ..gpt2.model import GPT2, Array
from ..gpt2.ops import softmax
from ..gpt2.tokenizer import EOT, Tokenizer, byte_alphabet, spelled_ids
from .mistakes import embedding_at, hide, is_later, mistakes_in, positions
from .places import Mistake, Place, Wrong, compute_activations, trials_in_all_layers

# From a text to ids

Bytes = Callable[[str], bytes]  # from a word to its bytes
Pattern = Callable[[str], Iterable[str]]  # from a text to its words
Merge = Callable[["Vocabulary", list[str]], list[str]]  # from the bytes of a word to its tokens
# GPT-2's split, in parts, of which a mistake replaces one
CONTRACTIONS = r"'(?:[sdmt]|ll|ve|re)"
LETTERS = r" ?\p{L}+"
DIGITS = r" ?\p{N}+"
OTHERS = r" ?[^\s\p{L}\p{N}]+"
SPACES = r"\s+(?!\S)|\s+"

ALPHABET = byte_alphabet()  # a byte -> its character in the vocabulary file


@dataclass(frozen=True)
class Vocabulary:
    """What the wrong encoders need of a tokenizer."""

    tokenizer: Tokenizer

    @cached_property
    def ids(self) -> dict[str, int]:
        return spelled_ids(self.tokenizer.merges)

    @cached_property
    def ranks(self) -> dict[tuple[str, str], int]:
        return {pair: rank for rank, pair in enumerate(self.tokenizer.merges)}


def words_of(*parts: str) -> Pattern:
    """The words of a text by a split that is made of these parts."""
    return regex.compile("|".join(parts)).findall


RIGHT_WORDS = words_of(CONTRACTIONS, LETTERS, DIGITS, OTHERS, SPACES)


def lowest_rank(
    vocabulary: Vocabulary, tokens: list[str], at_its_last_place: bool = False
) -> list[str]:
    """The right way: the merge that was learned first, at its first place, again and again."""
    while True:
        ranks = [vocabulary.ranks.get(pair) for pair in pairwise(tokens)]
        lowest = min((rank for rank in ranks if rank is not None), default=None)
        if lowest is None:
            return tokens
        places = [place for place, rank in enumerate(ranks) if rank == lowest]
        tokens = joined(tokens, places[-1] if at_its_last_place else places[0])


def joined(tokens: list[str], place: int) -> list[str]:
    return [*tokens[:place], tokens[place] + tokens[place + 1], *tokens[place + 2 :]]


def first_that_fits(vocabulary: Vocabulary, tokens: list[str]) -> list[str]:
    """The leftmost pair that has a merge, whichever was learned first."""
    place = 0
    while place < len(tokens) - 1:
        if (tokens[place], tokens[place + 1]) in vocabulary.ranks:
            tokens = joined(tokens, place)
            place = 0
        else:
            place += 1
    return tokens


def longest_match(vocabulary: Vocabulary, tokens: list[str]) -> list[str]:
    """The longest token that the text goes on with, without a look at the merges."""
    spelled = "".join(tokens)
    longest = []
    start = 0
    while start < len(spelled):
        end = len(spelled)
        while spelled[start:end] not in vocabulary.ids:  # a single byte always is
            end -= 1
        longest.append(spelled[start:end])
        start = end
    return longest


def one_pass(vocabulary: Vocabulary, tokens: list[str]) -> list[str]:
    """Each merge in the order in which it was learned, once, at its first place."""
    for pair in vocabulary.tokenizer.merges:
        for place in range(len(tokens) - 1):
            if (tokens[place], tokens[place + 1]) == pair:
                tokens = joined(tokens, place)
                break
    return tokens


def encode(
    vocabulary: Vocabulary,
    text: str,
    words: Pattern = RIGHT_WORDS,
    to_bytes: Bytes = str.encode,  # as UTF-8
    merge: Merge = lowest_rank,
    before: Callable[[str], str] = lambda text: text,
    reads_special: bool = True,
) -> list[int]:
    """The ids of a text, with one of the steps replaced."""
    parts = re.split(f"({re.escape(EOT)})", text) if reads_special else [text]
    ids = []
    for part in parts:
        if part == EOT and reads_special:
            ids.append(vocabulary.tokenizer.special_tokens[EOT])
            continue
        for word in words(before(part)):
            tokens = merge(vocabulary, [ALPHABET[byte] for byte in to_bytes(word)])
            ids += [vocabulary.ids[token] for token in tokens]
    return ids


def surrogates(word: str) -> bytes:
    """Each half of an emoji as three bytes, as in programs whose characters have 16 bits."""
    units = word.encode("utf-16-be")
    pairs = [units[n : n + 2].decode("utf-16-be", "surrogatepass") for n in range(0, len(units), 2)]
    return "".join(pairs).encode("utf-8", "surrogatepass")


Encoder = Callable[[Vocabulary, str], list[int]]

ENCODERS: dict[str, Encoder] = {
    "takes the longest token that fits, without the merges": partial(encode, merge=longest_match),
    "makes the leftmost merge, not the one that was learned first": partial(
        encode, merge=first_that_fits
    ),
    "makes a merge at its last place first": partial(
        encode, merge=partial(lowest_rank, at_its_last_place=True)
    ),
    "makes each merge once, at its first place alone": partial(encode, merge=one_pass),
    "makes no merge": partial(encode, merge=lambda vocabulary, tokens: tokens),
    "merges across words: the text is not split": partial(encode, words=lambda text: [text]),
    "splits at white space alone": partial(encode, words=words_of(r" ?\S+", SPACES)),
    "takes [a-zA-Z] for \\p{L}": partial(
        encode,
        words=words_of(CONTRACTIONS, r" ?[a-zA-Z]+", DIGITS, r" ?[^\sa-zA-Z\p{N}]+", SPACES),
    ),
    "takes \\w for letters, as the module re without \\p{L}": partial(
        encode, words=words_of(CONTRACTIONS, r" ?\w+", r" ?[^\s\w]+", SPACES)
    ),
    "takes [0-9] for \\p{N}": partial(
        encode,
        words=words_of(CONTRACTIONS, LETTERS, r" ?[0-9]+", r" ?[^\s\p{L}0-9]+", SPACES),
    ),
    "takes each digit alone": partial(
        encode, words=words_of(CONTRACTIONS, LETTERS, r" ?\p{N}", OTHERS, SPACES)
    ),
    "takes [ \\t\\r\\n] for \\s": partial(
        encode,
        words=words_of(
            CONTRACTIONS,
            LETTERS,
            DIGITS,
            r" ?[^ \t\r\n\p{L}\p{N}]+",
            r"[ \t\r\n]+(?![^ \t\r\n])|[ \t\r\n]+",
        ),
    ),
    "lacks the contractions ('s, 't, 'll)": partial(
        encode, words=words_of(LETTERS, DIGITS, OTHERS, SPACES)
    ),
    "reads contractions in capitals, too ('S, 'LL)": partial(
        encode, words=words_of(f"(?i:{CONTRACTIONS})", LETTERS, DIGITS, OTHERS, SPACES)
    ),
    "lacks the rule \\s+(?!\\S): no space is left for the next word": partial(
        encode, words=words_of(CONTRACTIONS, LETTERS, DIGITS, OTHERS, r"\s+")
    ),
    "has the characters for bytes (latin-1), not UTF-8": partial(
        encode, to_bytes=lambda word: bytes(ord(character) % 256 for character in word)
    ),
    "drops what is not ASCII": partial(
        encode, to_bytes=lambda word: word.encode("ascii", "ignore")
    ),
    "writes an emoji as two halves of three bytes": partial(encode, to_bytes=surrogates),
    "makes LF of CR LF": partial(encode, before=lambda text: text.replace("\r\n", "\n")),
    "drops NUL, or ends there": partial(encode, before=lambda text: text.split("\0")[0]),
    "puts a space before the text": partial(encode, before=lambda text: f" {text}"),
    "removes white space at both ends": partial(encode, before=str.strip),
    "makes small letters of capitals": partial(encode, before=str.lower),
    "normalises characters (NFC)": partial(
        encode, before=lambda text: unicodedata.normalize("NFC", text)
    ),
    "normalises characters (NFKC)": partial(
        encode, before=lambda text: unicodedata.normalize("NFKC", text)
    ),
    "reads <|endoftext|> as ordinary characters": partial(encode, reads_special=False),
}


# From ids to text. A right decoder joins the bytes of all tokens, and reads them as UTF-8.

Decoder = Callable[[Tokenizer, list[int]], str]


def spelled(tokenizer: Tokenizer, ids: list[int]) -> str:
    return "".join(ALPHABET[byte] for byte in tokenizer.decode_bytes(ids))


DECODERS: dict[str, Decoder] = {
    "decodes one token after the other, and a character has several": lambda tokenizer, ids: (
        "".join(tokenizer.decode([token]) for token in ids)
    ),
    "shows the characters of the vocabulary file, such as Ġ": spelled,
    "turns Ġ into a space, and no other character into its byte": lambda tokenizer, ids: (
        spelled(tokenizer, ids).replace("Ġ", " ").replace("Ċ", "\n")
    ),
    "drops <|endoftext|>": lambda tokenizer, ids: tokenizer.decode(
        [token for token in ids if token not in tokenizer.special_tokens.values()]
    ),
    "removes spaces before punctuation marks": lambda tokenizer, ids: re.sub(
        r" ([.,!?])", r"\1", tokenizer.decode(ids)
    ),  # clean_up_tokenization_spaces
    "removes white space at both ends": lambda tokenizer, ids: tokenizer.decode(ids).strip(),
    "drops bytes that are no character, without U+FFFD": lambda tokenizer, ids: (
        tokenizer.decode_bytes(ids).decode("utf-8", "ignore")
    ),
    "ends at NUL": lambda tokenizer, ids: tokenizer.decode(ids).split("\0")[0],
}


# A batch of texts of unequal lengths

RIGHT = ""  # the sentence of what is right, the first result of each list
Results = Iterator[tuple[str, Array]]
PADDINGS = (0, -1)  # the first and the last token of the vocabulary


def pattern_without(  # -> [B, H, T, T]
    at: Place, start: int, end: Array | float, first_query: int = 0
) -> Array:
    """The pattern if tokens do not see those from `start` to before `end`, but each sees itself.

    end: a number, or one for each text, [B, 1, 1, 1]. first_query: tokens before it see all.
    """
    T = at.x.shape[-1]
    query, key = np.mgrid[:T, :T]
    is_lost = (query >= first_query) & (key >= start) & (key < end)
    return softmax(hide(at.x, (is_later(at.x) | is_lost) & (key != query)))


def batch_results(model: GPT2, texts: list[list[int]]) -> Results:  # of [B, V]
    """The logits after the last token of each text. The right ones are those of a text alone."""
    yield RIGHT, np.array([model(text)[-1] for text in texts])

    lengths = np.array([len(text) for text in texts])
    T = lengths.max()
    missing = T - lengths  # [B]: how many tokens of padding each text gets
    for padding in PADDINGS:
        token = padding % model.config.vocab_size
        padded = np.array([text + [token] * (T - len(text)) for text in texts])
        yield (
            "yours takes the logits of the last column, which is padding in a shorter text",
            model(padded)[:, -1],
        )
        left_padded = np.array([[token] * (T - len(text)) + text for text in texts])
        ways: dict[str, dict[str, Wrong]] = {
            "pads on the left, and tokens see the padding": {
                # Positions begin at each text's first token.
                "embed": lambda at: embedding_at(at, (positions(at) - missing[:, None]).clip(0))
            },
            "pads on the left, and counts positions from the padding": {
                # No token sees the padding.
                f"attn.{layer}.pattern": partial(
                    pattern_without, start=0, end=missing[:, None, None, None]
                )
                for layer in range(model.config.n_layer)
            },
            # This is what a GPT-2 without a mistake makes of the padded ids.
            "pads on the left, sees the padding, and counts positions from it": {},
        }
        for sentence, planted in ways.items():
            tape = compute_activations(model, left_padded, given={}, planted=planted)
            yield f"yours {sentence}", tape["logits"][:, -1]


# Steps with a KV cache


def positions_of_new(at: Place, start: int, change: Callable[[Array], Array]) -> Array:
    """The embedding if the positions of the tokens after the prompt are changed."""
    places = positions(at)
    places[start:] = change(places[start:])
    return embedding_at(at, places)


def mistakes_of_steps(start: int) -> list[Mistake]:
    """Mistakes that are made only after the prompt of `start` tokens, as with a KV cache."""
    mistakes = [
        Mistake(
            f"{sentence} in the steps after the prompt",
            {"embed": partial(positions_of_new, start=start, change=change)},
            only_everywhere=True,
        )
        for sentence, change in (
            ("gives every token position 0", np.zeros_like),
            ("counts positions from 0 again", lambda places: places - start),
            ("counts positions one too high", lambda places: places + 1),
            ("counts positions one too low", lambda places: places - 1),
        )
    ]
    for sentence, first_seen in (
        ("does not see the tokens before it", 0),
        ("does not see the tokens between the prompt and itself", start),
    ):
        mistakes.append(
            Mistake(
                f"has steps after the prompt in which a token {sentence}",
                {
                    "attn.N.pattern": partial(
                        pattern_without, start=first_seen, end=np.inf, first_query=start
                    )
                },
                only_everywhere=True,
            )
        )
    return mistakes


def step_results(model: GPT2, prompt: list[int], next_ids: list[int]) -> Results:  # of [N, V]
    """The logits of tokens that are read one after the other, after a prompt."""
    start = len(prompt)
    ids = np.array([[*prompt, *next_ids]])
    logits = model(ids)[0]
    yield RIGHT, logits[start:]

    names = list(compute_activations(model, ids, given={}, planted={}))
    mistakes = [*mistakes_of_steps(start), *mistakes_in(model.config.n_layer)]
    for trial in trials_in_all_layers(mistakes, names):
        tape = compute_activations(model, ids, given={}, planted=trial.planted)
        yield trial.line, tape["logits"][0, start:]
    yield "yours has the logits of the token before each step", logits[start - 1 : -1]
    twice = model([*prompt, prompt[-1], *next_ids])
    yield "yours reads the last token of the prompt twice", twice[start + 1 :]
    without = model([*prompt[:-1], *next_ids])
    yield "yours does not read the last token of the prompt", without[start - 1 :]


# Gradients


def gradient_of(model: GPT2, parameter: str, ids: Any, targets: Any) -> Array:
    _, gradients = loss_and_gradients(model, np.array(ids), np.array(targets))
    return gradients[parameter]


def gradient_results(model: GPT2, parameter: str, ids: Any, targets: Any) -> Results:
    """The gradient of the mean loss, of wte or of lm_head."""
    right = gradient_of(model, parameter, ids, targets)
    yield RIGHT, right

    n = np.array(ids).size
    yield (
        f"yours is {n} times as large: of the sum of the {n} losses, not of their mean",
        right * n,
    )
    yield "yours is 0: nothing flows to it", 0 * right
    yield "yours has the other sign", -right

    # An untied model has an array for each of the two parts of a tied wte's gradient.
    is_tied = model.config.tied
    apart = model.untie("copy") if is_tied else model
    of_lookup = gradient_of(apart, "wte.weight", ids, targets)
    of_head = gradient_of(apart, "lm_head.weight", ids, targets)
    if is_tied:
        yield "yours is that of the embedding, without the output matrix's", of_lookup
        yield "yours is that of the output matrix, without the embedding's", of_head
    else:
        other = of_head if parameter == "wte.weight" else of_lookup
        yield "yours is that of the other matrix", other
        yield (
            "yours is the sum of both matrices' gradients, as if they were tied",
            (of_lookup + of_head),
        )
    if parameter == "wte.weight":
        last = last_lookup(apart, ids, targets)
        if is_tied:
            last = last + of_head
        yield "yours has one lookup of each token, the last: rows are set, not added", last
    if is_tied or parameter == "lm_head.weight":
        is_used = np.isin(np.arange(len(right)), np.array(ids))[:, None]
        yield "yours is 0 in the rows of tokens that are not in the text", right * is_used


def last_lookup(model: GPT2, ids: Any, targets: Any) -> Array:  # -> [V, D]
    """The gradient of wte if the row of a token is set by each lookup, not added to."""
    gradient = np.zeros_like(model.W_E, dtype=np.float64)
    for text, its_targets in zip(ids, targets, strict=True):
        # Each token of one text has a position of its own, whose gradient is that of the lookup.
        by_place = gradient_of(model, "wpe.weight", text, its_targets)
        for place, token in enumerate(text):
            gradient[token] = by_place[place] / len(ids)  # the mean over all texts
    return gradient


# AdamW


def step(
    parameter: Array,
    gradient: Array,
    settings: dict[str, float],
    decays: bool,
    corrects: bool = True,
    eps_inside: bool = False,
) -> Array:
    """A parameter after the first step of AdamW. Before it, both averages m and v are 0.

    decays: whether the weight decay is made. corrects: whether the averages are corrected for their
    start at 0. eps_inside: whether eps is added inside the root.
    """
    m = (1 - settings["beta1"]) * gradient
    v = (1 - settings["beta2"]) * gradient * gradient
    if corrects:
        m = m / (1 - settings["beta1"])
        v = v / (1 - settings["beta2"])
    if eps_inside:
        change = m / np.sqrt(v + settings["eps"])
    else:
        change = m / (np.sqrt(v) + settings["eps"])
    decay = settings["weight_decay"] if decays else 0.0
    return parameter - settings["lr"] * decay * parameter - settings["lr"] * change


def adamw_results(parameter: Array, gradient: Array, settings: dict[str, float]) -> Results:
    """The parameter after the first step of AdamW. Matrices decay, and nothing else does."""
    is_matrix = parameter.ndim > 1
    right = partial(step, settings=settings, decays=is_matrix)
    yield RIGHT, right(parameter, gradient)

    yield "yours is as it was: no step is made", parameter
    yield "yours lacks the weight decay", step(parameter, gradient, settings, decays=False)
    yield (
        "yours decays biases and layer norms, too",
        step(parameter, gradient, settings, decays=True),
    )
    with_decay = gradient + settings["weight_decay"] * parameter
    yield (
        "yours adds the weight decay to the gradient (L2), as Adam does",
        step(parameter, with_decay, settings, decays=False),
    )
    yield "yours lacks the bias correction", right(parameter, gradient, corrects=False)
    yield "yours has eps inside the root", right(parameter, gradient, eps_inside=True)
    yield (
        "yours makes two steps, as if the matrix were in the optimizer twice",
        right(right(parameter, gradient), gradient),
    )
    yield "yours goes up the gradient", right(parameter, -gradient)
    decay = settings["weight_decay"] if is_matrix else 0.0
    plain = parameter * (1 - settings["lr"] * decay) - settings["lr"] * gradient
    yield "yours is a step of plain gradient descent", plain
