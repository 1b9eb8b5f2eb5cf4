"""Sparse matrices as plain arrays, for the compiled loops of this package.

Numba compiles them into their callers, and its cache looks at the caller's file only: clear the cache after a change
here.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numba import njit


def csr_arrays(matrix: sp.csr_matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(indptr int64, indices int64 ascending within a row, data float64)."""
    matrix = sp.csr_matrix(matrix)
    if not matrix.has_sorted_indices:
        matrix = matrix.sorted_indices()
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), matrix.data.astype(np.float64)


@njit(cache=True)
def csr_entry(arrays, row, col):
    """Entry (row, col) of `csr_arrays`, by bisection; 0 where none is stored."""
    indptr, indices, data = arrays
    low, high = indptr[row], indptr[row + 1]
    while low < high:
        middle = (low + high) // 2
        if indices[middle] < col:
            low = middle + 1
        else:
            high = middle
    if low < indptr[row + 1] and indices[low] == col:
        return data[low]
    return 0.0
