"""The model of three words, which the reader changes."""

from ...study import toy
from .query import Query
from .registry import Answer, Turn, view


@view("toy")
def toy_solutions(query: Query, turn: Turn) -> Answer:
    """What each way to score predicts, for the reader's W_E or for the best one."""
    W_E = query.toy_matrix("W_E")
    P = query.toy_matrix("P")
    solutions = toy.solve(W_E, P)  # it also checks the numbers, for the best W_E too
    if query.solves_W_E:
        W_E = toy.embedding_of(P, W_E.shape[1])
        solutions = toy.solve(W_E, P)
    ways = {name: vars(solution) for name, solution in solutions.items()}
    return {"W_E": W_E, "ways": ways}
