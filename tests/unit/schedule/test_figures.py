"""The picture is drawn for ordinary and for awkward plans; what it shows is for people to judge."""

import numpy as np
import pytest
from PIL import Image

from odin.schedule.build import make_plan
from odin.schedule.figures import draw_plan, top_view


@pytest.mark.parametrize(("batch", "ranks", "num_steps"), [(4, 2, 80), (1, 1, 1), (2, 12, 5)])
def test_a_picture_is_written(scenes, tmp_path, batch, ranks, num_steps):
    scene = scenes.line_of_views(10, test_every=5)
    plan = make_plan(
        scene, scene_sha256="0", batch=batch, ranks=ranks, num_steps=num_steps, seed=0, structural_steps=(20,)
    )
    draw_plan(plan, scene, tmp_path / "deep" / "plan.png")
    with Image.open(tmp_path / "deep" / "plan.png") as picture:
        assert min(picture.size) > 300


def test_top_view_keeps_distances_on_the_ground(scenes):
    places = top_view(scenes.line_of_views(5))
    np.testing.assert_allclose(np.linalg.norm(np.diff(places, axis=0), axis=1), 1.0)


def test_top_view_of_cameras_that_look_straight_down(scenes):
    viewmats = []
    for x in range(3):
        viewmat = np.diag([1.0, -1.0, -1.0, 1.0])  # looks along -z, from height 5
        viewmat[:3, 3] = -viewmat[:3, :3] @ [x, 0.0, 5.0]
        viewmats.append(viewmat)
    # Half of them turned round, so that no up direction of the image is left on average.
    turned = [np.diag([-1.0, -1.0, 1.0, 1.0]) @ viewmat for viewmat in viewmats]
    scene = scenes.make_scene(np.stack(viewmats + turned), np.zeros((4, 3)), [np.zeros(0, int)] * 6)
    places = top_view(scene)
    np.testing.assert_allclose(np.linalg.norm(places[1] - places[0]), 1.0)
    np.testing.assert_allclose(places[:3], places[3:], atol=1e-12)
