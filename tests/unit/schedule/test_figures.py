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


def test_top_view_looks_along_the_direction_of_least_spread(scenes):
    generator = np.random.default_rng(0)
    ground = generator.uniform(-5, 5, (6, 2))
    viewmats = [scenes.look_at(np.array([x, y, 0.01 * x]), np.array([0.0, 0.0, -9.0])) for x, y in ground]
    places = top_view(scenes.make_scene(np.stack(viewmats), np.zeros((4, 3)), [np.zeros(0, int)] * 6))
    seen, true = (np.linalg.norm(p[:, None] - p[None], axis=-1) for p in (places, ground))
    np.testing.assert_allclose(seen, true, rtol=0.001)
