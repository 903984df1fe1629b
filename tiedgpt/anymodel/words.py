"""The words for what files hold and for how it is read (kinds.py says what they mean)."""


def by_rule(tied: bool | None, state: str) -> str | None:
    """The word for a program that reads one matrix if the flag says tied, else two.

    >>> by_rule(True, "ab"), by_rule(True, "a."), by_rule(False, "a."), by_rule(False, "aa")
    ('a0', 'a0', '!', 'aa')
    """
    if tied is None:
        return None
    if tied:
        return "!" if state.startswith(".") else "a0"
    return "!" if "." in state else state


def in_words(word: str | None) -> str | None:
    """A reading in words.

    >>> in_words("a0"), in_words("a?"), in_words("?a"), in_words("aa"), in_words("?0")
    ('tied', 'random head', 'random embedding', 'untied', 'random')
    """
    if word is None:
        return None
    if word == "!":
        return "error"
    values = values_of(word)
    if values.startswith("??") or "?" in values[2:]:
        return "random"
    if values[1] == "?":
        return "random head"
    if values[0] == "?":
        return "random embedding"
    return "tied" if is_one(word) else "untied"


def values_of(word: str) -> str:
    """The letter of each matrix in memory.

    >>> values_of("a0"), values_of("ab02"), values_of("!")
    ('aa', 'abaa', '!')
    """
    return "".join(word[root(word, place)] for place in range(len(word)))


def root(word: str, place: int) -> int:
    """The number of the first matrix that a matrix shares its memory with.

    >>> root("ab1", 2), root("ab1", 0)
    (1, 0)
    """
    while word[place].isdigit():
        place = int(word[place])
    return place


def is_one(word: str) -> bool:
    """Whether the head is one with a matrix that tokens are looked up in.

    >>> is_one("a0"), is_one("ab"), is_one("ab11"), is_one("!")
    (True, False, True, False)
    """
    if word == "!":
        return False
    roots = [root(word, place) for place in range(len(word))]
    return roots.count(roots[1]) > 1


def has_trouble(word: str, state: str) -> bool:
    """Whether a reading is an error, has random values, or lacks a matrix that is stored.

    >>> has_trouble("a0", "ab"), has_trouble("a?", "a."), has_trouble("a0", "aa")
    (True, True, False)
    """
    values = values_of(word)
    return "!" in values or "?" in values or not set(state) - {"."} <= set(values)
