"""Predicted scopes: which blocks of surface points a view can read, from cameras and SfM points alone.

Tracks say what a view *matched*; a view reads every primitive that its frustum reaches, which is far more on
object-centred captures. So conflicts between views are predicted from frusta: the SfM points stand for the primitives
that will grow from them, Morton blocks of points for the blocks of rows.
Legend: V views, P points, M blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numba import njit
from scipy.spatial import cKDTree

from odin.data.scene import Scene
from odin.primitives.morton import morton_order
from odin.rendering.frustum import reach, side_planes
from odin.rendering.interface import RenderSettings

MAX_BLOCK_POINTS = 64
TARGET_BLOCKS = 2048  # small scenes get smaller blocks, down to single points, until they have about so many
_STAND_IN_POINTS = 4096
_VIEWS_PER_CHUNK = 256


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scopes:
    """What each view's widened frustum holds."""

    incidence: sp.csr_matrix  # [V, M] float32, points of the block in the view's scope; absent where none
    num_points: np.ndarray  # [V] int64, points in the view's scope
    total_points: int

    @property
    def num_views(self) -> int:
        return self.incidence.shape[0]


def predict_scopes(scene: Scene, settings: RenderSettings | None = None, block_points: int | None = None) -> Scopes:
    """Scopes of all views of a scene (test views too; they cost little and drawings show them).

    Each point counts with the size of the primitive that starts there (its mean distance to three neighbours).
    A scene without points is given evenly spread ones around its cameras, as a random start would.
    """
    settings = settings or RenderSettings()
    points = scene.points.astype(np.float64) if len(scene.points) else _stand_in_points(scene)
    points = points[morton_order(points)]
    reaches = reach(point_sizes(points)[:, None])  # [P]
    if block_points is None:
        block_points = min(MAX_BLOCK_POINTS, max(1, len(points) // TARGET_BLOCKS))
    starts = np.arange(0, len(points), block_points)  # [M]
    box_low = np.minimum.reduceat(points, starts, axis=0)  # [M, 3]
    box_high = np.maximum.reduceat(points, starts, axis=0)
    box_reach = np.maximum.reduceat(reaches, starts)  # [M]
    ends = np.append(starts[1:], len(points))

    sides = [side_planes(scene.camera(view), settings) for view in range(scene.num_views)]
    planes = np.stack([side.coefficients for side in sides])  # [V, 5, 4]
    factors = np.stack([side.reach_factors for side in sides])  # [V, 5]
    rows = []
    for first in range(0, scene.num_views, _VIEWS_PER_CHUNK):
        chunk = slice(first, first + _VIEWS_PER_CHUNK)
        counts = np.zeros((len(planes[chunk]), len(starts)), np.float32)
        _count_points(
            planes[chunk], factors[chunk], points, reaches, starts, ends, box_low, box_high, box_reach, counts
        )
        rows.append(sp.csr_matrix(counts))
    incidence = sp.vstack(rows, format="csr")
    incidence.sort_indices()
    num_points = np.asarray(incidence.sum(axis=1, dtype=np.float64)).ravel().astype(np.int64)
    return Scopes(incidence=incidence, num_points=num_points, total_points=len(points))


def conflict_graph(scopes: Scopes, min_share: float = 0.0) -> sp.csr_matrix:
    """Share of view u's scope that view v's scope holds, as entry (u, v). [V, V] float32, not symmetric, 1 on the
    diagonal of views that see anything.

    Counts whole blocks of v: a block that v reaches at all may be written anywhere. Entries up to `min_share` are
    dropped while the product is formed, chunk by chunk, so that large scenes never hold a dense [V, V] matrix.
    """
    holders = scopes.incidence.copy()
    holders.data = np.ones_like(holders.data)
    holders = holders.T.tocsr()  # [M, V]
    sizes = np.maximum(scopes.num_points, 1).astype(np.float32)
    rows = []
    for first in range(0, scopes.num_views, _VIEWS_PER_CHUNK):
        chunk = slice(first, first + _VIEWS_PER_CHUNK)
        shares = sp.diags_array(1.0 / sizes[chunk]).astype(np.float32) @ (scopes.incidence[chunk] @ holders)
        shares.data[shares.data <= min_share] = 0.0
        shares.eliminate_zeros()
        rows.append(shares)
    graph = sp.csr_matrix(sp.vstack(rows, format="csr"), dtype=np.float32)
    graph.sort_indices()
    return graph


def point_sizes(points: np.ndarray) -> np.ndarray:
    """Root mean squared distance of each point [P, 3] to its three nearest neighbours: the scale at which 3DGS starts
    a primitive there. [P] float64, 0 for a single point."""
    num_neighbours = min(3, len(points) - 1)
    if num_neighbours < 1:
        return np.zeros(len(points))
    distances, _ = cKDTree(points).query(points, num_neighbours + 1)
    return np.sqrt((distances[:, 1:] ** 2).mean(axis=1))


def _stand_in_points(scene: Scene) -> np.ndarray:
    """Points spread over the cube of three scene extents around the cameras' centre (gsplat's random start)."""
    centres = np.stack([scene.camera(v).position for v in range(scene.num_views)])
    generator = np.random.Generator(np.random.PCG64(0))
    half = 3.0 * max(scene.extent, 1e-6)
    return centres.mean(axis=0) + generator.uniform(-half, half, (_STAND_IN_POINTS, 3))


@njit(cache=True, nogil=True)
def _count_points(planes, factors, points, reaches, starts, ends, box_low, box_high, box_reach, counts):
    """Points of each block that pass all side tests of each view. counts [V, M] is written where a block is hit.

    A block is skipped where its box and largest reach already fail a test: the test is linear, so the corner nearest
    to the inside decides.
    """
    num_sides = planes.shape[1]
    for v in range(planes.shape[0]):
        for block in range(starts.shape[0]):
            outside = False
            for i in range(num_sides):
                least = planes[v, i, 3] - factors[v, i] * box_reach[block]
                for axis in range(3):
                    slope = planes[v, i, axis]
                    least += slope * (box_low[block, axis] if slope > 0.0 else box_high[block, axis])
                if least >= 0.0:
                    outside = True
                    break
            if outside:
                continue
            inside = 0
            for p in range(starts[block], ends[block]):
                hit = True
                for i in range(num_sides):
                    value = planes[v, i, 3] - factors[v, i] * reaches[p]
                    for axis in range(3):
                        value += planes[v, i, axis] * points[p, axis]
                    if value >= 0.0:
                        hit = False
                        break
                inside += hit
            counts[v, block] = inside
