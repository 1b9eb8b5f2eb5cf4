"""Predicted scopes, conflicts, locality and costs on scenes whose answers are known."""

import numpy as np
import pytest

from odin.rendering.interface import RenderSettings
from odin.schedule.costs import ROWS_PER_POINT, US_PER_PIXEL, US_PER_ROW, US_PER_UNIT, predict_costs
from odin.schedule.locality import jaccard, locality_graph, track_matrix
from odin.schedule.scopes import conflict_graph, point_sizes, predict_scopes


def test_each_cluster_is_in_the_scope_of_its_own_views_only(scenes):
    scene = scenes.two_clusters(views_each=4, points_each=150)
    scopes = predict_scopes(scene)
    assert scopes.num_points.tolist() == [150] * 8
    expected = np.equal.outer(np.arange(8) % 2, np.arange(8) % 2).astype(np.float32)
    np.testing.assert_allclose(conflict_graph(scopes).toarray(), expected, rtol=1e-6)


@pytest.mark.parametrize("block_points", [1, 7, 64])
def test_scopes_hold_every_point_that_projects_into_the_image(scenes, block_points):
    scene = scenes.line_of_views(6)
    incidence = predict_scopes(scene, block_points=block_points).incidence
    for view in range(scene.num_views):
        camera_points = scene.points @ scene.viewmats[view, :3, :3].T + scene.viewmats[view, :3, 3]
        x = scenes.focal_px * camera_points[:, 0] / camera_points[:, 2] + scenes.width / 2
        y = scenes.focal_px * camera_points[:, 1] / camera_points[:, 2] + scenes.height / 2
        inside = (camera_points[:, 2] > 0) & (x >= 0) & (x <= scenes.width) & (y >= 0) & (y <= scenes.height)
        assert inside.sum() <= incidence[view].sum() < len(scene.points)


def test_counts_do_not_depend_on_the_size_of_blocks(scenes):
    scene = scenes.line_of_views(6)
    single, blocks = (predict_scopes(scene, block_points=size) for size in (1, 16))
    assert single.num_points.tolist() == blocks.num_points.tolist()
    # Whole blocks of the other view count, so coarser blocks can only predict more conflict.
    assert (conflict_graph(blocks).toarray() >= conflict_graph(single).toarray() - 1e-6).all()


def test_a_point_enters_the_scope_when_its_size_reaches_the_image(scenes):
    viewmat = scenes.look_at(np.array([0.0, -10.0, 0.0]), np.zeros(3))
    beyond = 10.0 * (scenes.width / 2 + 30.0) / scenes.focal_px  # 30 pixels right of the image
    lone = np.array([[beyond, 0.0, 0.0]])
    assert predict_scopes(scenes.make_scene(viewmat[None], lone, [np.zeros(0, int)])).num_points.tolist() == [0]
    spread = np.concatenate(
        [lone, lone + np.array([[6.0, 0, 0], [6.0, 0, 1.0], [6.0, 0, -1.0]])]
    )  # sizes above 2 units
    assert predict_scopes(scenes.make_scene(viewmat[None], spread, [np.zeros(0, int)])).num_points[0] >= 1


def test_near_plane_and_margin_come_from_the_render_settings(scenes):
    viewmat = scenes.look_at(np.array([0.0, -1.0, 0.0]), np.zeros(3))
    scene = scenes.make_scene(viewmat[None], np.zeros((1, 3)), [np.zeros(0, int)])
    assert predict_scopes(scene).num_points.tolist() == [1]
    assert predict_scopes(scene, RenderSettings(near_plane=1.5)).num_points.tolist() == [0]


def test_point_sizes_are_rms_distances_to_three_neighbours():
    points = np.array([[0.0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 2]])
    assert point_sizes(points)[0] == pytest.approx(np.sqrt((1 + 4 + 4) / 3))
    assert point_sizes(points[:1]).tolist() == [0.0]
    assert point_sizes(points[:2]).tolist() == [1.0, 1.0]


def test_a_scene_without_points_gets_stand_ins(scenes):
    scene = scenes.two_clusters(views_each=3)
    empty = scenes.make_scene(scene.viewmats, np.zeros((0, 3)), [np.zeros(0, int)] * 6)
    scopes = predict_scopes(empty)
    assert (scopes.num_points > 0).all()
    again = predict_scopes(empty)
    assert (scopes.incidence != again.incidence).nnz == 0


def test_jaccard_by_hand(scenes):
    scene = scenes.make_scene(
        np.tile(np.eye(4), (3, 1, 1)), np.zeros((5, 3)), [np.array(t) for t in ([0, 1, 2], [2, 3], [4])]
    )
    expected = np.array([[0, 0.25, 0], [0.25, 0, 0], [0, 0, 0]], np.float32)
    np.testing.assert_array_equal(jaccard(track_matrix(scene)).toarray(), expected)
    np.testing.assert_array_equal(locality_graph(scene).toarray(), expected)
    assert locality_graph(scene, min_weight=0.25).nnz == 0


def test_jaccard_in_chunks_equals_the_dense_formula():
    generator = np.random.default_rng(0)
    members = generator.random((600, 40)) < 0.1
    shared = (members[:, None] & members[None]).sum(-1)
    either = (members[:, None] | members[None]).sum(-1)
    expected = np.where(either > 0, shared / np.maximum(either, 1), 0.0)
    np.fill_diagonal(expected, 0.0)
    import scipy.sparse as sp

    np.testing.assert_allclose(jaccard(sp.csr_matrix(members.astype(np.float32))).toarray(), expected, rtol=1e-6)


def test_views_without_tracks_are_compared_by_scope(scenes):
    scene = scenes.two_clusters(views_each=2, points_each=150)
    tracks = [scene.tracks(view) for view in range(4)]
    tracks[3] = np.zeros(0, np.int32)
    graph = locality_graph(scenes.make_scene(scene.viewmats, scene.points, tracks)).toarray()
    np.testing.assert_array_equal(graph, graph.T)
    assert graph[3].tolist() == [0.0, 1.0, 0.0, 0.0]  # the same ball as view 1, nothing of the other
    assert graph[0, 2] == pytest.approx(74 / 76)


def test_costs_follow_the_formula_and_average_one(scenes):
    scene = scenes.two_clusters(views_each=4, test_every=4)
    scopes = predict_scopes(scene)
    costs = predict_costs(scene, scopes)
    assert costs[scene.train_views].mean() == pytest.approx(1.0)
    us = US_PER_UNIT + US_PER_ROW * ROWS_PER_POINT * scopes.num_points + US_PER_PIXEL * scenes.width * scenes.height
    np.testing.assert_allclose(costs, us / us[scene.train_views].mean(), rtol=1e-6)
