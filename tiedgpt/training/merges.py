"""Learn the merges of a byte-level BPE from a text.

At first, each byte is a token. The most frequent pair of neighbouring tokens becomes a new token
everywhere in the text; this repeats until there are enough tokens. Merges stay inside words, as in
tokenizer.py, so the text is represented by its different words and their counts:

    >>> learn_merges("low low low lower", limit=3)
    [('l', 'o'), ('lo', 'w'), ('Ġ', 'low')]

Of equally frequent pairs, the one with the lowest id of the left token is merged first; if the left
tokens are equal, the one with the lowest id of the right token. Hugging Face's BpeTrainer has the
same rule and learns the same merges from the same words.
"""

from collections import Counter, defaultdict
from heapq import heapify, heappop, heappush
from itertools import pairwise

from ..errors import Range
from ..gpt2.tokenizer import EOT, WORDS, Tokenizer, byte_alphabet, utf8

Pair = tuple[int, int]  # the ids of two neighbouring tokens
GAP = -1  # stands in a list of ids where there is no token


def learn_tokenizer(text: str, vocab_size: int) -> Tokenizer:
    """A tokenizer of `vocab_size` tokens: 256 bytes, merges learned from `text`, and
    "<|endoftext|>".

    257 tokens have no merge; 256 tokens are the bytes alone, without "<|endoftext|>". A text in
    which too few pairs occur twice gives a smaller vocabulary. Raises ArgumentError for less than
    256.
    """
    Range(256).check("vocab_size", vocab_size)
    if vocab_size == 256:
        return Tokenizer([], special_tokens={})
    merge_count = vocab_size - 257  # without the bytes and "<|endoftext|>"
    return Tokenizer(learn_merges(text, merge_count))


def learn_merges(text: str, limit: int) -> list[tuple[str, str]]:
    """The first `limit` merges of a text, or fewer: a pair that occurs once is not merged.

    "<|endoftext|>" in the text separates documents. No merge is learned from it, and no word
    crosses it. Raises TokenizerError for text that is not valid UTF-8.
    """
    utf8(text, "the text")
    word_counts: Counter[str] = Counter()
    for document in text.split(EOT):
        word_counts.update(match[0] for match in WORDS.finditer(document))
    words = Words(word_counts)
    spelling = list(byte_alphabet().values())  # id -> token
    merges: list[tuple[str, str]] = []
    while len(merges) < limit:
        pair = words.most_frequent_pair()
        if pair is None:
            break
        left_id, right_id = pair
        words.merge(pair, merged_id=len(spelling))
        merges.append((spelling[left_id], spelling[right_id]))
        spelling.append(spelling[left_id] + spelling[right_id])
    return merges


class Words:
    """All different words of a text as ids of tokens, and the counts of neighbouring pairs.

    The words stand in one list of ids, with GAP before, between and after them. A token is
    identified by its position in the list. When two tokens are merged, the new one takes the place
    of the left one, and the place of the right one becomes a GAP.
    """

    def __init__(self, words: Counter[str]) -> None:
        # The n-th byte of byte_alphabet has id n. This table translates a byte to its id.
        bytes_in_order_of_ids = bytes(byte_alphabet())
        ids_of_bytes = bytes(range(256))
        table = bytes.maketrans(bytes_in_order_of_ids, ids_of_bytes)
        self.ids = [GAP]
        self.word_counts = [0]  # how often the word at each position occurs in the text
        for word, count in words.items():
            word_ids = word.encode().translate(table)
            self.ids.extend(word_ids)
            self.ids.append(GAP)
            self.word_counts += [count] * (len(word_ids) + 1)  # at its GAP too

        # The position of the next token or GAP after each token, and of the one before it.
        self.after = list(range(1, len(self.ids) + 1))
        self.before = list(range(-1, len(self.ids) - 1))

        self.counts: Counter[Pair] = Counter()
        # The positions of each pair's left token, ascending. Later merges may have changed some of
        # these tokens, so `merge` looks whether the pair is still there.
        self.places: defaultdict[Pair, list[int]] = defaultdict(list)
        for left, pair in enumerate(pairwise(self.ids)):
            if GAP not in pair:
                self.counts[pair] += self.word_counts[left]
                self.places[pair].append(left)

        # heappop gives the smallest item. That is the most frequent pair, and of equally frequent
        # pairs the one with the lowest ids. A later merge can lower a pair's count, but its item
        # stays.
        self.heap = [(-count, pair) for pair, count in self.counts.items()]
        heapify(self.heap)

    def most_frequent_pair(self) -> Pair | None:
        """The next pair to merge, or None if none occurs twice."""
        while self.heap:
            negative_count, pair = heappop(self.heap)
            count = self.counts[pair]
            if count != -negative_count:
                # Merges took some of its tokens since it was inserted, so its count is lower now.
                heappush(self.heap, (-count, pair))
            elif count < 2:
                return None
            else:
                return pair
        return None

    def merge(self, pair: Pair, merged_id: int) -> None:
        """Make one token of the pair everywhere, and count the pairs that this changes.

        Where the tokens p, left, right, f become p, merged, f, the pairs (p, left) and (right, f)
        become (p, merged) and (merged, f).
        """
        ids = self.ids
        left_id, right_id = pair
        new_places: defaultdict[Pair, list[int]] = defaultdict(list)
        for left in self.places.pop(pair):
            right = self.after[left]  # left, right, previous, following: positions in `ids`
            # A merge may have taken one of the two tokens. It may be this merge: in "aaa" it makes
            # a token of the first two letters, and the pair of the last two is gone.
            if ids[left] != left_id or ids[right] != right_id:
                continue
            previous = self.before[left]
            following = self.after[right]
            ids[left] = merged_id
            ids[right] = GAP
            self.after[left] = following
            self.before[following] = left

            # Each neighbour leaves an old pair and gets a new one. In the tokens l r l r, the pair
            # (lr, l) is new at the first merge and old at the second.
            word_count = self.word_counts[left]
            previous_id = ids[previous]
            if previous_id != GAP:
                self.counts[previous_id, left_id] -= word_count
                self.counts[previous_id, merged_id] += word_count
                new_places[previous_id, merged_id].append(previous)
            following_id = ids[following]
            if following_id != GAP:
                self.counts[right_id, following_id] -= word_count
                self.counts[merged_id, following_id] += word_count
                new_places[merged_id, following_id].append(left)

        # `places` had no place of these pairs, because one token of each is new.
        self.places |= new_places
        for new_pair in new_places:
            heappush(self.heap, (-self.counts[new_pair], new_pair))
