"""Learn the merges of a byte-level BPE from a text.

At first, each byte is a token. The most frequent pair of neighbouring tokens becomes a new token
everywhere in the text; this repeats until there are enough tokens. Merges stay inside words, as in
tokenizer.py, so the text is represented by its different words and their counts:

    >>> learn_merges("low low low lower", limit=3)
    [('l', 'o'), ('lo', 'w'), ('Ġ', 'low')]

Of equally frequent pairs, the one whose left token has the lower id is merged first, then the one
whose right token has. Hugging Face's BpeTrainer has the same rule and learns the same merges from
the same words.
"""

from collections import Counter, defaultdict
from heapq import heapify, heappop, heappush
from itertools import pairwise

from ..errors import Range
from ..gpt2.tokenizer import EOT, WORDS, Tokenizer, byte_alphabet, utf8


def learn_tokenizer(text: str, vocab_size: int) -> Tokenizer:
    """A tokenizer of `vocab_size` tokens: 256 bytes, merges learned from `text`, and
    "<|endoftext|>".

    257 tokens have no merge; 256 tokens are the bytes alone, without "<|endoftext|>". A text with
    too few merges (see `learn_merges`) gives a smaller vocabulary. Raises ArgumentError for less
    than 256.
    """
    Range(256).check("vocab_size", vocab_size)
    if vocab_size == 256:
        return Tokenizer([], special_tokens={})
    return Tokenizer(learn_merges(text, vocab_size - 257))


def learn_merges(text: str, limit: int) -> list[tuple[str, str]]:
    """The first `limit` merges of a text, or fewer: a pair that occurs once is not merged.

    "<|endoftext|>" in the text separates documents. No merge is learned from it, and no word
    crosses it. Raises TokenizerError for text that is not valid UTF-8.
    """
    utf8(text, "the text")
    words = Counter(word[0] for document in text.split(EOT) for word in WORDS.finditer(document))

    # All different words in one list of ids. A token is identified by its position in the list.
    # `gap` is between words, and in the place of a token that was merged into its left neighbour.
    alphabet = byte_alphabet()
    id_of_byte = bytes.maketrans(bytes(alphabet), bytes(range(256)))
    gap = -1
    ids, times = [gap], [0]  # times: the count of the word at this position
    for word, count in words.items():
        ids += [*word.encode().translate(id_of_byte), gap]
        times += [count] * (len(ids) - len(times))
    after, before = list(range(1, len(ids) + 1)), list(range(-1, len(ids) - 1))

    counts: Counter[tuple[int, int]] = Counter()
    places = defaultdict(list)  # pair -> the positions of its left token, ascending
    for left, pair in enumerate(pairwise(ids)):
        if gap not in pair:
            counts[pair] += times[left]
            places[pair].append(left)
    heap = [
        (-count, pair) for pair, count in counts.items()
    ]  # most frequent first, then lowest ids
    heapify(heap)

    spelling = list(alphabet.values())  # id -> token
    merges: list[tuple[str, str]] = []
    while heap and len(merges) < limit:
        count_then, pair = heappop(heap)
        if (
            counts[pair] != -count_then
        ):  # later merges used some of its places: insert it with its new count
            heappush(heap, (-counts[pair], pair))
            continue
        if counts[pair] < 2:
            break
        left_id, right_id = pair
        merged = len(spelling)
        merges.append((spelling[left_id], spelling[right_id]))
        spelling.append(spelling[left_id] + spelling[right_id])

        new_places = defaultdict(list)
        for left in places.pop(pair):
            right = after[left]
            if ids[left] != left_id or ids[right] != right_id:
                continue  # another merge took one of the two, or this merge did: "aaa" becomes "aa", "a"
            ids[left], ids[right] = merged, gap
            first, last = before[left], after[right]
            after[left], before[last] = last, left
            if (
                ids[first] != gap
            ):  # the neighbours of left and right are now those of the merged token
                counts[ids[first], left_id] -= times[left]
                counts[ids[first], merged] += times[left]
                new_places[ids[first], merged].append(first)
            if ids[last] != gap:
                counts[right_id, ids[last]] -= times[left]
                counts[merged, ids[last]] += times[left]
                new_places[merged, ids[last]].append(left)
        places |= (
            new_places  # all places of a new pair are found here, because one of its tokens is new
        )
        for pair in new_places:
            heappush(heap, (-counts[pair], pair))
    return merges
