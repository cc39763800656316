"""Linear programs, by HiGHS."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def minimize(
    cost: FloatArray,
    entries: tuple[IntArray, IntArray, FloatArray],
    limits: FloatArray,
    by_simplex: bool = False,
) -> FloatArray | None:
    """The x ≥ 0 with the least cost·x of those with A·x ≤ limits; None where there is none.

    ``entries`` are rows, columns and values of A, no place twice. ``by_simplex`` asks for a corner
    of the optima, where few variables are above zero.
    """
    import highspy  # only plans and bounds need it

    rows, columns, values = entries
    in_rows = np.argsort(rows, kind="stable")
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(cost), len(limits)
    lp.col_cost_ = cost
    lp.col_lower_, lp.col_upper_ = np.zeros(len(cost)), np.full(len(cost), highspy.kHighsInf)
    lp.row_lower_, lp.row_upper_ = np.full(len(limits), -highspy.kHighsInf), limits
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.append(0, np.cumsum(np.bincount(rows, minlength=len(limits))))
    lp.a_matrix_.index_ = columns[in_rows]
    lp.a_matrix_.value_ = values[in_rows]
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    if by_simplex:
        solver.setOptionValue("solver", "simplex")
    solver.passModel(lp)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return np.array(solver.getSolution().col_value)
