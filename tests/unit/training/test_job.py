"""Jobs: what does not fit together is refused by name; segments cut a run at its barriers."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odin.schedule.plan_io import save_plan
from odin.training.job import Job, load_job
from odin.training.options import TrainOptions


def job_of(num_steps, structural_steps, checkpoint_every):
    return Job(
        options=TrainOptions(scene_dir="", plan="", checkpoint_every=checkpoint_every),
        plan=SimpleNamespace(num_steps=num_steps, structural_steps=structural_steps),
        scene=None, pipeline=None, preset=None, table=None, identity="", scene_sha256="", plan_sha256="",
    )  # fmt: skip


def test_segments_end_at_every_barrier():
    job = job_of(10, (3, 8), 4)
    assert job.segments(0) == [(1, 3), (4, 4), (5, 8), (9, 10)]
    assert job.segments(4) == [(5, 8), (9, 10)]
    assert job.segments(5) == [(6, 8), (9, 10)]
    assert job.segments(10) == []
    assert job_of(10, (), 0).segments(0) == [(1, 10)]
    assert job_of(10, (), 5).segments(0) == [(1, 5), (6, 10)]
    assert job_of(1, (), 250).segments(0) == [(1, 1)]


@given(st.data())
def test_segments_are_a_partition_of_the_steps_left(data):
    num_steps = data.draw(st.integers(1, 60))
    structural = data.draw(st.sets(st.integers(1, max(num_steps - 1, 1)))) if num_steps > 1 else set()
    every = data.draw(st.integers(0, 70))
    after = data.draw(st.integers(0, num_steps))
    segments = job_of(num_steps, tuple(sorted(structural)), every).segments(after)
    steps = [step for first, last in segments for step in range(first, last + 1)]
    assert steps == list(range(after + 1, num_steps + 1))
    assert all(first <= last for first, last in segments)
    checkpoints = {step for step in range(1, num_steps) if every and step % every == 0}
    assert {last for _, last in segments} == {s for s in {num_steps, *structural, *checkpoints} if s > after}


def test_a_job_holds_what_its_options_ask_for(tiny_options):
    job = load_job(tiny_options)
    assert job.table.num_steps == job.plan.num_steps == 210
    assert job.restructuring == frozenset(job.plan.structural_steps) and job.restructuring
    assert job.background.dtype == np.float32 and job.background.shape == (3,)
    assert job.preset.name == "small" and job.pipeline.name == "3dgs"
    assert load_job(replace(tiny_options, delay_s=1.0, out="elsewhere")).identity == job.identity
    assert load_job(replace(tiny_options, mode="quality")).identity != job.identity


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"batch": 2}, "the plan has batch 4, this run needs 2"),
        ({"ranks": 3}, "the plan has ranks 2, this run needs 3"),
        ({"views": 844}, "the plan has steps 210, this run needs 211"),
        (
            {"preset": "paper"},
            r"the plan changes structure at \d other steps than the 0 of pipeline '3dgs' with preset 'paper'",
        ),
        ({"batch": 0}, "batch is 0"),
    ],
)
def test_a_plan_of_another_run_is_refused(tiny_options, changes, message):
    with pytest.raises(ValueError, match=message):
        load_job(replace(tiny_options, **changes))


def test_views_that_need_the_same_steps_may_use_the_same_plan(tiny_options):
    """839 views in batches of 4 are 210 steps too: the last batch is full."""
    assert load_job(replace(tiny_options, views=839)).plan.num_steps == 210


def test_a_plan_for_other_bytes_of_the_scene_is_refused(tiny_options, tmp_path):
    """Same name, same views, but prepared anew: scopes and costs were predicted for other points."""
    plan = load_job(tiny_options).plan
    save_plan(replace(plan, scene_sha256="0" * 64), tmp_path / "plan.odin")
    with pytest.raises(ValueError, match=f"made for scene .* with sha256 {'0' * 64}"):
        load_job(replace(tiny_options, plan=str(tmp_path / "plan.odin")))


def test_a_missing_plan_is_an_error(tiny_options):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_job(replace(tiny_options, plan="nowhere.odin"))
