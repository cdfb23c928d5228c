# pyright: strict
"""Inequalities of polynomials that cannot all hold, by exact linear programming.

Monomials are taken for variables. By Farkas' lemma no values of these fulfil some inequalities
where, and only where, a sum of them, each times a number of 0 or more, is `0 > 0`.
"""

from collections.abc import Mapping, Sequence

from flint import fmpq

Monomial = tuple[int, ...]
Terms = Mapping[Monomial, fmpq]  # of a polynomial
Inequality = tuple[Terms, bool]  # a polynomial that is 0 or more; True: that is more than 0
_MOST_PIVOTS = 200


def contradict(rows: Sequence[Inequality]) -> bool:
    """True if inequalities are seen not to hold together; False says nothing."""
    one: Inequality = ({(): fmpq(1)}, True)  # the monomial 1 is the same in all
    rows = [*rows, one]
    columns = [_without_trailing_zeros(terms) for terms, _ in rows]
    names = {monomial: number for number, column in enumerate(columns) for monomial in column}
    places = {monomial: number for number, monomial in enumerate(names)}
    # The sum is 0, and one of its parts is more than 0: their factors have the sum 1.
    table = [[fmpq(0)] * (len(rows) + 1) for _ in range(len(places) + 1)]
    for number, (column, (_, strict)) in enumerate(zip(columns, rows, strict=True)):
        for monomial, coefficient in column.items():
            table[places[monomial]][number] = coefficient
        table[-1][number] = fmpq(int(strict))
    table[-1][-1] = fmpq(1)
    return _has_solution(table)


def _without_trailing_zeros(terms: Terms) -> dict[Monomial, fmpq]:
    result: dict[Monomial, fmpq] = {}
    for monomial, coefficient in terms.items():
        end = max((number + 1 for number, power in enumerate(monomial) if power), default=0)
        result[monomial[:end]] = coefficient
    return result


def _has_solution(table: list[list[fmpq]]) -> bool:
    """True if equations have a nonnegative solution: the simplex method's first phase."""
    zero, width = fmpq(0), len(table[0]) - 1
    basis = [width + number for number in range(len(table))]  # a variable of its own for each row
    gain = [sum(column, zero) for column in zip(*table, strict=True)]
    for _ in range(_MOST_PIVOTS):
        if gain[-1] == 0:
            return True
        entering = next((number for number in range(width) if gain[number] > 0), None)
        if entering is None:
            return False
        ratios = [
            (row[-1] / row[entering], basis[number], number)
            for number, row in enumerate(table)
            if row[entering] > 0
        ]
        *_, leaving = min(ratios)
        by = table[leaving][entering]
        pivot = [value / by if value else zero for value in table[leaving]]
        table[leaving], basis[leaving] = pivot, entering
        for number, row in enumerate([*table, gain]):
            times = row[entering]
            if times and number != leaving:
                row[:] = [a - times * b if b else a for a, b in zip(row, pivot, strict=True)]
    return False
