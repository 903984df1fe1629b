"""Byte-level BPE learned from a text: which tokens stand side by side so often that they should be one?

It begins with bytes. The commonest pair of neighbours becomes a token, everywhere; that makes new pairs, and
again the commonest becomes a token. Merges happen inside words only, as they do when tokenizer.py does them
again, so all there is to a text is its different words and how often each comes:

    >>> learn_merges("low low low lower", limit=3)
    [('l', 'o'), ('lo', 'w'), ('Ġ', 'low')]

Of equally common pairs, the one whose left token is older (has the lower id) comes first, then the one whose
right token is. Hugging Face's BpeTrainer chooses so too, and from the same words it learns the same merges.
"""

from collections import Counter, defaultdict
from heapq import heapify, heappop, heappush
from itertools import pairwise

from ..errors import ArgumentError, is_count, short_repr
from ..tokenizer import EOT, WORDS, Tokenizer, byte_alphabet, utf8


def learn_tokenizer(text: str, vocab_size: int) -> Tokenizer:
    """A tokenizer of `vocab_size` tokens: 256 bytes, what merges make of `text`, and "<|endoftext|>".

    So 257 has no merge, and 256 is the bytes alone, without "<|endoftext|>". A text that has too few merges
    in it (see `learn_merges`) gives a smaller vocabulary. Raises ArgumentError for less than 256.
    """
    if not is_count(vocab_size, 256):
        raise ArgumentError(
            "vocab_size must be a whole number of at least 256, one for each byte, "
            f"got {short_repr(vocab_size)}"
        )
    if vocab_size == 256:
        return Tokenizer([], special_tokens={})
    return Tokenizer(learn_merges(text, vocab_size - 257))


def learn_merges(text: str, limit: int) -> list[tuple[str, str]]:
    """The first `limit` merges of a text, or all it has: a pair that comes only once makes no token.

    "<|endoftext|>" in the text ends a document. It is not learned from, and no word reaches across it.
    Raises TokenizerError for text that is not valid UTF-8.

    A merge visits the places where its pair stands and no others. So beyond finding the words, the time is
    proportional to the bytes of the different words, however many merges are learned.
    """
    utf8(text, "the text")
    words = Counter(word[0] for document in text.split(EOT) for word in WORDS.finditer(document))

    # The different words in one row, as ids. A symbol is known by its position; `gap` is what the row holds
    # between words, and in the place of a symbol that its left neighbour took in.
    alphabet = byte_alphabet()
    id_of_byte = bytes.maketrans(bytes(alphabet), bytes(range(256)))
    gap = -1
    ids, times = [gap], [0]  # times: how often the word comes that a symbol is in
    for word, count in words.items():
        ids += [*word.encode().translate(id_of_byte), gap]
        times += [count] * (len(ids) - len(times))
    after, before = list(range(1, len(ids) + 1)), list(range(-1, len(ids) - 1))

    counts: Counter[tuple[int, int]] = Counter()
    places = defaultdict(list)  # pair -> the positions of its left symbol, from left to right
    for left, pair in enumerate(pairwise(ids)):
        if gap not in pair:
            counts[pair] += times[left]
            places[pair].append(left)
    heap = [(-count, pair) for pair, count in counts.items()]  # the commonest on top, of these the oldest
    heapify(heap)

    spelling = list(alphabet.values())  # id -> token
    merges: list[tuple[str, str]] = []
    while heap and len(merges) < limit:
        count_then, pair = heappop(heap)
        if counts[pair] != -count_then:  # merges since took some of its places: back to where it belongs
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
                continue  # another merge took one of the two; or this one, as in "aaa", which is "aa", "a"
            ids[left], ids[right] = merged, gap
            first, last = before[left], after[right]
            after[left], before[last] = last, left
            if ids[first] != gap:  # left and right had a neighbour each, which is now the merged token's
                counts[ids[first], left_id] -= times[left]
                counts[ids[first], merged] += times[left]
                new_places[ids[first], merged].append(first)
            if ids[last] != gap:
                counts[right_id, ids[last]] -= times[left]
                counts[merged, ids[last]] += times[left]
                new_places[merged, ids[last]].append(left)
        places |= new_places  # all of a pair's places come at once, with the younger of its two tokens
        for pair in new_places:
            heappush(heap, (-counts[pair], pair))
    return merges
