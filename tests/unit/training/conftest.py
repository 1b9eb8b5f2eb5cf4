"""A job on the tiny scene; the renderers' helper modules importable here."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from odin.data.scene_io import load_scene
from odin.pipelines.protocol import get_pipeline
from odin.schedule.build import make_plan
from odin.schedule.plan_io import save_plan
from odin.training.options import TrainOptions, file_sha256

sys.path.insert(0, str(Path(__file__).parents[1] / "rendering"))


@pytest.fixture(scope="session")
def tiny_options(tiny_prepared, tmp_path_factory) -> TrainOptions:
    """Options whose plan fits: 840 views in batches of 4, one structural step at least, 2 ranks."""
    options = TrainOptions(
        scene_dir=str(tiny_prepared), plan=str(tmp_path_factory.mktemp("plan") / "plan.odin"), ranks=2, views=840
    )
    budget = options.budget
    plan = make_plan(
        load_scene(tiny_prepared),
        scene_sha256=file_sha256(tiny_prepared / "scene.npz"),
        batch=options.batch,
        ranks=options.ranks,
        num_steps=budget.num_steps,
        seed=options.seed,
        structural_steps=get_pipeline(options.pipeline).structural_steps(options.resolve_preset(), budget),
    )
    save_plan(plan, options.plan)
    return replace(options, out=str(tmp_path_factory.mktemp("out") / "run"))
