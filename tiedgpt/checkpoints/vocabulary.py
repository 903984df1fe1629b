"""The tokenizer of a folder: which of its files are read.

tokenizer.json is read where there is one, as in transformers; else merges.txt with vocab.json, as
OpenAI published them. Without vocab.json, the ids follow from the merges.

As in transformers, a text is searched for the tokens that tokenizer.json adds or that a file names
("pad_token": "<pad>"), and for <|endoftext|>. No text has the other names of a vocabulary that no
merge makes.

Other files may name tokens, too: added_tokens.json, tokenizer_config.json (the settings) and
special_tokens_map.json. Those that list ids add their tokens to merges.txt and vocab.json. All that
such a file says of a token must hold for the tokenizer that was read. If it does not, transformers
might give other ids, and the folder is refused. Beside tokenizer.json, merges.txt and vocab.json
must say the same.
"""

import re
import warnings
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import CheckpointError, TiedGPTWarning, TokenizerError, short_repr
from ..gpt2.config import Config
from ..gpt2.special_tokens import Flags
from ..gpt2.tokenizer import EOT, Tokenizer, spelled_ids
from .json_files import CONFIG, Folder

Json = dict[str, Any]  # an object of a JSON file
# What a file says of a token: some fields of an entry of added_tokens in tokenizer.json, such as
# {"content": "<pad>", "id": 50257, "special": True}.
Entry = dict[str, Any]

TOKENIZER_JSON = "tokenizer.json"
ADDED = "added_tokens.json"
SETTINGS = "tokenizer_config.json"
DECODER = "added_tokens_decoder"  # in the settings; with it, transformers reads no other file
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
MERGES_AND_VOCAB = ("merges.txt", "vocab.json")
OPENAIS_NAMES = ("vocab.bpe", "encoder.json")  # of the same two files
GPT2_TOKENS = 50257

# The fields of tokenizer.json that change ids, and the values they may have: those of GPT-2 first.
# None: the field may be absent. Truncation and padding, which add or remove tokens, do not matter.
GPT2_VALUES: dict[str, tuple[Any, ...]] = {
    "normalizer": (None,),
    "model.type": ("BPE", None),  # absent in GPT-2's own file
    "model.dropout": (None, 0),
    "model.continuing_subword_prefix": ("", None),
    "model.end_of_word_suffix": ("", None),
    "model.ignore_merges": (False, None),
    "pre_tokenizer.type": ("ByteLevel",),
    "pre_tokenizer.add_prefix_space": (False, True),
    "pre_tokenizer.use_regex": (True, None),
}
# Files of tokenizers that are not read: of BERT, and of SentencePiece.
OTHER_TOKENIZERS = ("vocab.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
# The values of tokenizer_class for which transformers adds <|endoftext|> to a vocabulary, unless
# all of NAMED_AS_EOT name another token. None: the field is absent.
GPT2_CLASSES = (None, "GPT2Tokenizer", "GPT2TokenizerFast")
NAMED_AS_EOT = {"unk_token", "bos_token", "eos_token"}
# Those for which it adds nothing to tokenizer.json.
GENERAL_CLASSES = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend")
# Those that add the tokens of all ALL_NAMES, unless the settings name others.
ROBERTA_CLASSES = tuple(
    f"{model}Tokenizer{fast}"
    for model in ("Roberta", "Bart", "Longformer", "LED")
    for fast in ("", "Fast")
)
ALL_NAMES = NAMED_AS_EOT | {"sep_token", "pad_token", "cls_token", "mask_token"}
# The fields of the settings that hold more special tokens, in different versions of transformers.
EXTRA_TOKENS = (
    "extra_special_tokens",
    "additional_special_tokens",
    "model_specific_special_tokens",
)
# The names, in each file, of tokens that transformers takes for special.
NAMES_OF_SPECIAL = {
    SETTINGS: {*ALL_NAMES, *EXTRA_TOKENS},
    SPECIAL_TOKENS_MAP: {*ALL_NAMES, "extra_special_tokens"},
}
MEND = (
    "load the folder once with transformers' AutoTokenizer and write it with save_pretrained, "
    "which puts all tokens into tokenizer.json"
)
MEND_CLASS = (
    f'if {TOKENIZER_JSON} alone has the right ids, write "tokenizer_class": '
    f'"PreTrainedTokenizerFast" into {SETTINGS}'
)


class Mention(NamedTuple):
    """What a file beside the vocabulary says of a token."""

    file: str
    name: str  # such as pad_token; "" if it is listed with its id; one of EXTRA_TOKENS without both
    entry: Entry  # {} for a name that means no token

    @property
    def text(self) -> Any:
        return self.entry.get("content")


class Vocabulary(NamedTuple):
    """What tokenizer.json says, or merges.txt and vocab.json with the tokens added to them."""

    name: str  # what errors call the files
    merges: list[tuple[str, str]]
    ids: dict[str, int]  # token -> id
    added: dict[str, Entry]  # text -> entry of each token for which a text is searched
    prefix_space: bool
    adds_eot: bool  # whether transformers adds <|endoftext|>, unless NAMED_AS_EOT have other tokens


def read_tokenizer(directory: Path | Folder, config: Config | None = None) -> Tokenizer:
    """The tokenizer of a model's directory.

    config: that of the model; without it, config.json is read. Warns of a tokenizer with ids that
    the model does not have.

    Raises CheckpointError for files that are missing or malformed, TokenizerError for a vocabulary
    that contradicts itself or would give other ids than Tokenizer does.
    """
    files = directory if isinstance(directory, Folder) else Folder(directory)
    folder = files.path
    has_json = (folder / TOKENIZER_JSON).is_file()
    pair = MERGES_AND_VOCAB if (folder / "merges.txt").is_file() else OPENAIS_NAMES
    V: Any
    if config is None:
        model_fields = files.json(CONFIG)
        V = model_fields.get("vocab_size")
    else:
        model_fields = config.others  # the fields of config.json that a Config does not have
        V = config.vocab_size
    if not has_json and not (folder / pair[0]).is_file():
        raise no_tokenizer(folder, vocab_size=config.vocab_size if config else None)

    # The files that name tokens, too
    settings = dict(files.json(SETTINGS))
    if settings.get("tokenizer_class") is None and "tokenizer_class" in model_fields:
        settings["tokenizer_class"] = model_fields["tokenizer_class"]  # transformers reads it there
    others = {SETTINGS: settings}
    if DECODER not in settings:  # where it is, transformers reads no other file
        others |= {name: files.json(name) for name in (ADDED, SPECIAL_TOKENS_MAP)}
    says_more = any(others.values())  # most folders have none of these files
    if says_more:
        check_settings(settings, folder, has_json)
    mentions = list(mentions_in(others)) if says_more else []

    if has_json:
        vocabulary = read_tokenizer_json(files, settings)
    else:
        vocabulary = read_merges_and_vocab(files, pair, settings, mentions)
    tokenizer = tokenizer_of(vocabulary, mentions)

    # Do the files that were not read for it say the same?
    if has_json:
        compare_merges_and_vocab(tokenizer, files, pair)
    if says_more:
        compare_others(tokenizer, mentions, vocabulary, settings, folder)
    if type(V) is int and 0 <= V < tokenizer.vocab_size:
        warn_of_ids(tokenizer, V, vocabulary.name)
    return tokenizer


def no_tokenizer(folder: Path, vocab_size: int | None) -> CheckpointError:
    """The error for a folder without a tokenizer that is read: it says what may be there.

    vocab_size: that of the model, if it is known.
    """
    has = f"{folder} has no tokenizer: expected merges.txt and vocab.json, or tokenizer.json"
    if (folder / "ckpt.pt").is_file():
        if vocab_size is not None and vocab_size < GPT2_TOKENS:
            return CheckpointError(
                f"{has}; ckpt.pt has {vocab_size:,} tokens, so its vocabulary is not GPT-2's: that "
                "of nanoGPT's characters is in meta.pkl, beside the text; encode with it, and pass "
                "ids"
            )
        condition = ""
        if vocab_size is None:
            condition = f"if the model has GPT-2's {GPT2_TOKENS:,} tokens, or some more, "
        return CheckpointError(f"{has}; {condition}copy merges.txt and vocab.json of gpt2 there")
    for name in OTHER_TOKENIZERS:
        if (folder / name).is_file():
            return CheckpointError(
                f"{has} ({name} is of another tokenizer, which is not read: encode with "
                "transformers, and pass ids)"
            )
    return CheckpointError(has)


def check_settings(settings: Json, folder: Path, has_json: bool) -> None:
    """Raise TokenizerError for settings of tokenizer_config.json that give other ids than GPT-2's.

    Warn of settings that add tokens to each text.
    """
    kind = settings.get("tokenizer_class")
    is_known = kind in GPT2_CLASSES + GENERAL_CLASSES
    # RoBERTa's classes add a token for each of ALL_NAMES that the settings lack.
    adds_no_name = has_json and kind in ROBERTA_CLASSES and settings.keys() >= ALL_NAMES
    if not is_known and not adds_no_name:
        raise TokenizerError(
            f"{folder}: tokenizer_class is {short_repr(kind)}, which may add tokens, or cut a text "
            f"in another way than GPT-2; {MEND_CLASS if has_json else MEND}"
        )
    if settings.get("split_special_tokens"):
        raise TokenizerError(
            f"{folder / SETTINGS}: split_special_tokens is set, expected false, as in GPT-2"
        )
    for name in ("add_bos_token", "add_eos_token"):
        if settings.get(name):
            warn_of_tokens_at_the_ends(f"{folder / SETTINGS}: {name}")


# tokenizer.json


def read_tokenizer_json(files: Folder, settings: Json) -> Vocabulary:
    """The vocabulary of tokenizer.json.

    Raises TokenizerError for a tokenizer that would give other ids than Tokenizer does.
    """
    path = files.path / TOKENIZER_JSON
    file = files.json(TOKENIZER_JSON)
    pre_tokenizer: Any = file.get("pre_tokenizer")
    match pre_tokenizer:
        case {"type": "Sequence", "pretokenizers": [only]}:  # does what its one part does
            pre_tokenizer = only
    # From here on, pre_tokenizer is a ByteLevel with add_prefix_space.
    check_values({**file, "pre_tokenizer": pre_tokenizer}, path)
    if adds_tokens(file.get("post_processor")):
        warn_of_tokens_at_the_ends(f"{path}: post_processor")
    match file:
        case {"model": {"vocab": dict(ids), "merges": list(lines)}}:
            merges = as_merges(lines, f"{path}, merge")
        case _:
            raise TokenizerError(f"{path}: expected model.vocab and model.merges")
    entries = file.get("added_tokens") or []
    if not isinstance(entries, list):
        entries = [entries]  # which add_tokens refuses
    added = add_tokens(ids, entries, f"{path}")

    # transformers reads add_prefix_space from tokenizer_config.json. Without the field there, the
    # general classes read it from tokenizer.json, and GPT-2's class puts no space before a text.
    prefix_space = bool(pre_tokenizer["add_prefix_space"])
    kind = settings.get("tokenizer_class")
    default = prefix_space if kind in GENERAL_CLASSES else False
    if bool(settings.get("add_prefix_space", default)) != prefix_space:
        raise TokenizerError(
            f"{path}: add_prefix_space is {prefix_space}, but not in {SETTINGS} beside it, which "
            "transformers reads; write the right value into both files"
        )
    return Vocabulary(f"{path}", merges, ids, added, prefix_space, adds_eot=kind in GPT2_CLASSES)


def check_values(file: Json, path: Path) -> None:
    """Raise TokenizerError for a field that has another value than those of GPT2_VALUES."""
    for name, accepted in GPT2_VALUES.items():
        value: Any = file
        for key in name.split("."):  # "model.type" is the field "type" of the field "model"
            if isinstance(value, dict):
                value = value.get(key)
        # A "model" that is no object is its own value, and is accepted only if it is missing: None.
        if value not in accepted:  # the first one is GPT-2's
            raise TokenizerError(
                f"{path}: {name} is {short_repr(value)}, expected {accepted[0]!r}, as in GPT-2"
            )


def add_tokens(ids: dict[str, int], entries: list[Any], source: str) -> dict[str, Entry]:
    """The entries of added tokens, by text; their ids are added to those of a vocabulary.

    Raises TokenizerError for another id than the one that transformers gives an added token: the id
    in the vocabulary, or the number of tokens before it. source: what the error calls the files.
    """
    added = {}
    for entry in entries:
        match entry:
            case {"content": str(text), "id": token_id} if type(token_id) is int:  # True is no id
                added[text] = entry
            case _:
                raise TokenizerError(
                    f"{source}: added_tokens: expected content and id, got {short_repr(entry)}"
                )
    for text, entry in sorted(added.items(), key=lambda item: item[1]["id"]):
        expected = ids.setdefault(text, len(ids))
        if entry["id"] != expected:
            raise TokenizerError(
                f"{source}: added token {short_repr(text)} has id {entry['id']}, expected "
                f"{short_repr(expected)}"
            )
    return added


def adds_tokens(post_processor: Any) -> bool:
    """Whether a post_processor adds tokens to a text, for example at its beginning."""
    match post_processor:
        case {"processors": list(parts)}:  # a sequence
            return any(adds_tokens(part) for part in parts)
        case {"type": "TemplateProcessing"}:
            return bool(post_processor.get("special_tokens"))
        case {"type": "BertProcessing" | "RobertaProcessing"}:
            return True
    return False


def warn_of_tokens_at_the_ends(name: str) -> None:
    """Warn that other programs would add tokens to each text. `name` is the file and the field."""
    warnings.warn(
        f"{name} adds tokens before or after a text, but tiedgpt adds none: write them into the "
        "text, and allow special tokens",
        TiedGPTWarning,
        stacklevel=4,  # the line that called read_tokenizer
    )


# merges.txt and vocab.json


def read_merges_and_vocab(
    files: Folder, pair: tuple[str, str], settings: Json, mentions: list[Mention]
) -> Vocabulary:
    """The vocabulary of merges.txt and vocab.json, with the tokens that other files list.

    pair: the names of the two files. mentions: what the other files say of tokens.
    """
    merges_file, vocab_file = pair
    name = f"{files.path / merges_file}"
    merges = read_merges(files, merges_file)
    if (files.path / vocab_file).is_file():
        name = f"{name} with {vocab_file}"
        ids = dict(files.json(vocab_file))
    else:  # the ids follow from the merges, and <|endoftext|> is the last token
        ids = spelled_ids(merges)
        ids[EOT] = len(ids)
    added = {}
    if mentions:
        special = [
            each.text for each in mentions if each.name in NAMES_OF_SPECIAL.get(each.file, ())
        ]
        listed = [mention for mention in mentions if mention.name == ""]
        # added_tokens.json does not say which of its tokens are special.
        entries = [{"special": mention.text in special, **mention.entry} for mention in listed]
        file = mentions[0].file  # one file lists tokens, and they come first
        added = add_tokens(ids, entries, f"{files.path / file}")
    prefix_space = bool(settings.get("add_prefix_space"))
    return Vocabulary(name, merges, ids, added, prefix_space, adds_eot=True)


def read_merges(files: Folder, file: str) -> list[tuple[str, str]]:
    """The merges of merges.txt, one a line: "h e". The first line may be "#version: 0.2"."""
    path = files.path / file
    content = files.read(file)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise CheckpointError(f"{path}, line {number}: not UTF-8") from error
    text = text.replace("\r\n", "\n").rstrip("\n")
    lines = text.split("\n") if text else []
    if lines and lines[0].startswith("#version"):
        return as_merges(lines[1:], f"{path}, line", first=2)
    return as_merges(lines, f"{path}, line")


def as_merges(lines: list[Any], place: str, first: int = 1) -> list[tuple[str, str]]:
    """The merges, each given as "a b" or ["a", "b"]. Raises TokenizerError.

    place: what an error says before the number of a line. first: the number of the first one.
    """
    merges = []
    for number, line in enumerate(lines, start=first):
        pair = line.split(" ") if isinstance(line, str) else line
        match pair:
            case [str(left), str(right)] if left and right:
                merges.append((left, right))
            case _:
                raise TokenizerError(
                    f"{place} {number}: expected two tokens, got {short_repr(line)}"
                )
    return merges


# What the other files say of tokens. The files are in `others`: name -> content.


def mentions_in(others: dict[str, Json]) -> Iterator[Mention]:
    """Each token that another file lists with its id, or names, or has without either.

    What is no token is refused later.
    """
    # The settings list {"50257": {"content": "<pad>", ...}}, added_tokens.json {"<pad>": 50257}.
    decoder = others[SETTINGS].get(DECODER, {})
    listed = decoder.items() if isinstance(decoder, dict) else [("", decoder)]
    for key, token in listed:
        entry = entry_of(token)
        token_id = int(key) if re.fullmatch("[0-9]{1,18}", key) else key
        defaults = {"special": False, "normalized": not entry.get("special", False)}
        yield Mention(SETTINGS, name="", entry={**defaults, **entry, "id": token_id})
    for text, token_id in others.get(ADDED, {}).items():
        yield Mention(ADDED, name="", entry={"content": text, "id": token_id})

    for file in (SPECIAL_TOKENS_MAP, SETTINGS):
        names: Json = {}
        for field, value in others.get(file, {}).items():
            # "add_bos_token" looks like a name, but its value is true or false.
            if field.endswith("_token") and not isinstance(value, bool):
                names[field] = value
            elif field in EXTRA_TOKENS and isinstance(value, dict):
                names |= value  # {"image_token": "<image>"}
            elif field in EXTRA_TOKENS and value:
                # A single token may stand without a list.
                for token in value if isinstance(value, list) else [value]:
                    yield Mention(file, field, entry_of(token))
        for name, token in names.items():
            entry = {} if token is None else {**entry_of(token), "special": True}
            yield Mention(file, name, entry)


def entry_of(token: Any) -> Entry:
    """A token that is given as its text, or as an entry of added_tokens, as such an entry."""
    return token if isinstance(token, dict) else {"content": token}


# The tokenizer is made, and compared with the other files.


def tokenizer_of(vocabulary: Vocabulary, mentions: list[Mention]) -> Tokenizer:
    """The tokenizer of a vocabulary, and of what other files say of its tokens.

    Raises TokenizerError, which names the files, for a vocabulary that contradicts itself.
    """
    name, merges, ids, added, prefix_space, adds_eot = vocabulary
    # A text is searched for the tokens that are added, and for those that the vocabulary has and
    # other files name. `compare_others` refuses names of tokens that merges make, and tokens that
    # only added_tokens.json adds.
    named: dict[str, Entry] = {}
    for mention in mentions:
        text = mention.text
        if isinstance(text, str) and text in ids and text not in added and mention.file != ADDED:
            named.setdefault(text, mention.entry)
    if named:
        for left, right in merges:
            named.pop(left + right, None)
    tokens = added | named

    # <|endoftext|> is added if a file has it, or by transformers' class.
    names = {mention.name for mention in mentions}
    is_mentioned = any(mention.text == EOT for mention in mentions)
    is_of_class = adds_eot and not names >= NAMED_AS_EOT
    if EOT not in tokens and (is_mentioned or is_of_class):
        tokens[EOT] = {}
        ids.setdefault(EOT, len(ids))

    # A token with an entry of {} has the flags that Tokenizer gives it.
    flags = {text: flags_of(text, entry, name) for text, entry in tokens.items() if entry}
    if len(tokens) == 1:  # it is the same whether the only token is searched for first or last
        flags = {text: replace(only, normalized=False) for text, only in flags.items()}
    special_tokens = {text: ids[text] for text in tokens}
    try:
        tokenizer = Tokenizer(merges, special_tokens, ids, flags, prefix_space)
    except TokenizerError as error:
        raise TokenizerError(f"{name}: {error}") from None
    # "Ġ" is how a space is written, so these tokens look like ordinary ones.
    ordinary = tokenizer.ordinary_tokens
    unmade = [token for token in tokenizer.ids if "Ġ" in token and token not in ordinary]
    if unmade:
        check_that_merges_are_whole(tokenizer, unmade, name)
    return tokenizer


def flags_of(text: str, entry: Entry, name: str) -> Flags:
    """The flags of a special token. Raises TokenizerError. name: what it calls the files."""
    special = entry.get("special", True)
    fields = {"special": special, "normalized": not special}
    for field in ("normalized", "lstrip", "rstrip", "single_word"):
        if field in entry:
            fields[field] = entry[field]
    for field, value in fields.items():
        if not isinstance(value, bool):
            raise TokenizerError(
                f"{name}: {field} of token {short_repr(text)} is {short_repr(value)}, expected "
                "true or false"
            )
    if text == EOT:  # the end of a document is special, whatever a file says
        fields["special"] = True
    return Flags(**fields)


def check_that_merges_are_whole(tokenizer: Tokenizer, unmade: list[str], name: str) -> None:
    """Raise TokenizerError if the last lines of merges.txt seem to be lost.

    Then no merge makes the last ordinary tokens of the vocabulary. Most of them have a "Ġ", which
    is how a space is written. Somebody may have removed merges in the middle (such as merges of
    digits, so that each digit is a token): then a warning says so. unmade: the tokens with a "Ġ"
    that no merge makes. name: what messages call the files.
    """
    last_made = max((tokenizer.ids[token] for token in tokenizer.ordinary_tokens), default=-1)
    for token in unmade:
        if tokenizer.ids[token] > last_made or token in tokenizer.special_tokens:
            raise TokenizerError(
                f'{name}: token {short_repr(token)} has a "Ġ", a space in ordinary tokens, but no '
                "merge makes it"
            )
    warnings.warn(
        f"{name}: no merge makes {len(unmade)} tokens with a space, such as "
        f"{short_repr(unmade[0])}: no text has them",
        TiedGPTWarning,
        stacklevel=4,  # the line that called read_tokenizer
    )


def compare_merges_and_vocab(tokenizer: Tokenizer, files: Folder, pair: tuple[str, str]) -> None:
    """Raise TokenizerError if merges.txt or vocab.json are not those of tokenizer.json.

    pair: the names of these two files.
    """
    merges_path, vocab_path = (files.path / name for name in pair)
    if files.has(pair[0]) and read_merges(files, pair[0]) != tokenizer.merges:
        raise TokenizerError(
            f"{merges_path}: its merges are not those of {TOKENIZER_JSON} beside it; remove the "
            "file that is wrong"
        )
    for token, token_id in files.json(pair[1]).items():
        if tokenizer.ids.get(token) != token_id:
            raise TokenizerError(
                f"{vocab_path}: token {short_repr(token)} has id {short_repr(token_id)}, but "
                f"{tokenizer.ids.get(token, 'none')} in {TOKENIZER_JSON} beside it; remove the "
                "file that is wrong"
            )


def compare_others(
    tokenizer: Tokenizer,
    mentions: list[Mention],
    vocabulary: Vocabulary,
    settings: Json,
    folder: Path,
) -> None:
    """Raise TokenizerError if files beside the vocabulary contradict it, or each other."""
    texts: dict[str, Any] = {}  # name, such as pad_token -> its token in the first file that has it
    for mention in mentions:
        entry = dict(mention.entry)
        is_named = mention.name not in ("", *EXTRA_TOKENS)  # such as pad_token
        if is_named and f"{mention.text}" in vocabulary.added:
            entry.pop("normalized", None)  # the vocabulary's own entry has it, and counts
        first_text = mention.text
        if is_named:
            first_text = texts.setdefault(mention.name, mention.text)
        contradicts = bool(entry) and not agrees(tokenizer, entry)  # {} means no token
        if contradicts or mention.text != first_text:
            raise TokenizerError(
                f"{folder / mention.file}: token {short_repr(mention.text)} is not in the "
                f"vocabulary, or another file differs from {short_repr(entry)}; {MEND}"
            )
    # Where the settings have added_tokens_decoder, transformers reads no other added tokens.
    listed = [mention.text for mention in mentions if mention.name == ""]
    for text in tokenizer.special_tokens:
        if DECODER in settings and text not in listed:
            raise TokenizerError(
                f"{folder / SETTINGS}: {DECODER} lacks token {short_repr(text)} of the vocabulary; "
                f"{MEND}"
            )


def agrees(tokenizer: Tokenizer, entry: Entry) -> bool:
    """Whether the tokenizer has a token as another file says: with the same fields."""
    text = entry.get("content")
    if not isinstance(text, str) or text not in tokenizer.special_tokens:
        return False
    expected: Entry = {"id": tokenizer.special_tokens[text], **asdict(tokenizer.flags[text])}
    if text == EOT:
        del expected["special"]  # the end of a document is special, whatever a file says
    if len(tokenizer.special_tokens) == 1:
        del expected["normalized"]  # it is the same whether the only token is searched for first
    return all(entry.get(field, value) == value for field, value in expected.items())


def warn_of_ids(tokenizer: Tokenizer, vocab_size: int, name: str) -> None:
    """Warn that the model cannot read all tokens: the files may be those of another model.

    name: what the warning calls the files.
    """
    unreadable = [token for token in tokenizer.ids if tokenizer.ids[token] >= vocab_size]
    warnings.warn(
        f"{name} has ids up to {tokenizer.vocab_size - 1}, more than the model of {vocab_size} "
        f"tokens has: it cannot read {short_repr(unreadable[0])} and those after it; if these "
        "are the files of another model, no text has the right ids",
        TiedGPTWarning,
        stacklevel=3,  # the line that called read_tokenizer
    )
