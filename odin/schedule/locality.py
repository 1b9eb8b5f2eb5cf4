"""Locality: how much two views show of the same surface.

The view graph is weighted by the Jaccard index of the views' SfM track sets. It says which views look alike (and so
should not share a batch, or should stay on one rank); what views *conflict* is predicted from scopes (scopes.py).
Legend: V views, P points.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from odin.data.scene import Scene
from odin.schedule.scopes import Scopes, predict_scopes

_VIEWS_PER_CHUNK = 256


def locality_graph(scene: Scene, scopes: Scopes | None = None, min_weight: float = 0.0) -> sp.csr_matrix:
    """Jaccard index of the views' track sets: [V, V] float32, symmetric, empty diagonal.

    A view without tracks is compared with every other view by predicted scope instead (`scopes` if given, else
    computed where needed). Weights up to `min_weight` are left out.
    """
    tracks = track_matrix(scene)
    graph = jaccard(tracks, min_weight)
    blind = np.flatnonzero(np.diff(scene.track_offsets) == 0)
    if len(blind) == 0:
        return graph
    scopes = scopes or predict_scopes(scene)
    by_scope = jaccard(scopes.incidence, min_weight)
    is_blind = np.zeros(scene.num_views, np.float32)
    is_blind[blind] = 1.0
    # A blind view has no row of its own in the track graph, so the two never weigh the same pair.
    touches_blind = sp.diags_array(is_blind) @ by_scope
    graph = graph + touches_blind.maximum(touches_blind.T)
    graph = sp.csr_matrix(graph, dtype=np.float32)
    graph.eliminate_zeros()
    graph.sort_indices()
    return graph


def track_matrix(scene: Scene) -> sp.csr_matrix:
    """Which view saw which point: [V, P] float32 ones."""
    num_points = max(len(scene.points), int(scene.track_points.max(initial=-1)) + 1)
    matrix = sp.csr_matrix(
        (np.ones(len(scene.track_points), np.float32), scene.track_points, scene.track_offsets),
        shape=(scene.num_views, num_points),
    )
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return matrix


def jaccard(members: sp.csr_matrix, min_weight: float = 0.0) -> sp.csr_matrix:
    """Jaccard index |a & b| / |a | b| of the rows' sets of stored columns. [V, V] float32, empty diagonal.

    Formed in chunks of rows, so memory follows the number of pairs that share anything, not V x V.
    """
    members = members.copy()
    members.data = np.ones_like(members.data, dtype=np.float32)
    sizes = np.diff(members.indptr).astype(np.float32)
    transposed = members.T.tocsr()
    rows = []
    for first in range(0, members.shape[0], _VIEWS_PER_CHUNK):
        shared = (members[first : first + _VIEWS_PER_CHUNK] @ transposed).tocoo()
        row = shared.row + first
        weight = shared.data / (sizes[row] + sizes[shared.col] - shared.data)
        keep = (row != shared.col) & (weight > min_weight)
        rows.append((row[keep], shared.col[keep], weight[keep]))
    row, col, weight = (np.concatenate(part) for part in zip(*rows, strict=True))
    graph = sp.csr_matrix((weight.astype(np.float32), (row, col)), shape=(members.shape[0],) * 2)
    graph.sort_indices()
    return graph
