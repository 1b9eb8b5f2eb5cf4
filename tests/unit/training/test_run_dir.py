"""What a run directory accepts, refuses and keeps."""

from dataclasses import replace

import numpy as np
import pytest

from odin.data.jsonio import read_json, write_json
from odin.primitives.ply import load_ply
from odin.training.job import load_job
from odin.training.run_dir import RunDir

PER_RANK = [{"train_s": 2.0, "wait_s": 0.5, "totals_s": {"wait": 0.5}}, {"train_s": 4.0, "wait_s": 1.0, "totals_s": {}}]


@pytest.fixture
def job(tiny_options):
    return load_job(tiny_options)


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path / "run")


def publish(run, job, **changes):
    primitives = job.pipeline.initialize(job.scene, job.preset, job.options.seed)
    values = {
        "wall_s": 5.0, "per_rank": PER_RANK, "transport": "gloo", "final_loss": 0.25, "resumed_from": None,
        "renderer": "cpu",
    }  # fmt: skip
    run.publish(job, primitives, **values | changes)
    return primitives


def contents(run):
    return {path.relative_to(run.path): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_a_new_folder_is_begun_and_its_options_read_back(run, job):
    assert run.begin(job, data="tiny") is True
    assert run.load_options() == job.options
    record = read_json(run.record)
    assert (record["identity"], record["steps"], record["data"]) == (job.identity, 210, "tiny")
    assert record["num_train_views"] == len(job.scene.train_views)
    assert not run.complete


def test_the_same_run_goes_on_and_may_change_what_is_operational(run, job, tiny_options):
    run.begin(job, data="tiny")
    write_json(run.failure(1), {"rank": 1})
    run.checkpoints.mkdir()
    (run.checkpoints / "step-0000010.npz").write_bytes(b"kept")
    again = load_job(replace(tiny_options, timeout_s=7.0, device="cpu"))
    assert run.begin(again, data="tiny") is True
    assert run.load_options().timeout_s == 7.0
    assert not run.failure(1).exists()  # it tells of the attempt before
    assert (run.checkpoints / "step-0000010.npz").read_bytes() == b"kept"


def test_a_complete_run_is_left_alone(run, job, tiny_options):
    run.begin(job, data="tiny")
    publish(run, job)
    before = contents(run)
    assert run.complete
    assert run.begin(load_job(replace(tiny_options, timeout_s=7.0)), data="tiny") is False
    assert contents(run) == before


@pytest.mark.parametrize("finished", [False, True])
def test_another_run_is_refused_with_what_differs_and_nothing_is_overwritten(run, job, tiny_options, finished):
    run.begin(job, data="tiny")
    write_json(run.failure(0), {"rank": 0})
    if finished:
        publish(run, job)
    before = contents(run)
    with pytest.raises(ValueError, match=r"run holds another run: .*mode \(sync there, quality here\).*new folder"):
        run.begin(load_job(replace(tiny_options, mode="quality")), data="tiny")
    with pytest.raises(ValueError, match=r"seed \(0 there, 3 here\)"):
        run.begin(load_job(replace(tiny_options, seed=3)), data="tiny")
    assert contents(run) == before


def test_operational_differences_do_not_hide_what_makes_it_another_run(run, job, tiny_options):
    run.begin(job, data="tiny")
    other = replace(
        tiny_options,
        announce=False,
        checkpoint_every=3,
        delay_s=0.1,
        device="cpu",
        out="x",
        pin=False,
        seed=5,
        cap=9000,
    )
    with pytest.raises(ValueError) as caught:
        run.begin(load_job(other), data="elsewhere")
    assert "another run: seed (0 there, 5 here), preset's cap (20000 there, 9000 here). Train" in str(caught.value)


def test_a_record_of_another_version_is_an_error_that_says_so(run, job):
    run.begin(job, data="tiny")
    write_json(run.record, {key: value for key, value in read_json(run.record).items() if key != "announce"})
    with pytest.raises(ValueError, match="run.json: announce missing; another version of odin"):
        run.load_options()


def test_a_rank_without_a_loss_does_not_fail_the_run(run, job):
    run.begin(job, data="tiny")
    publish(run, job, final_loss=float("nan"))
    assert run.complete and read_json(run.summary)["final_loss"] is None


def test_a_run_is_complete_only_with_its_summary_and_its_model(run, job):
    run.begin(job, data="tiny")
    publish(run, job)
    run.model.unlink()
    assert not run.complete and run.begin(job, data="tiny") is True
    publish(run, job)
    run.summary.unlink()
    assert not run.complete and run.begin(job, data="tiny") is True


def test_the_summary_counts_what_was_trained(run, job):
    run.begin(job, data="tiny")
    primitives = publish(run, job, resumed_from=100)
    summary = read_json(run.summary)
    assert summary["train_s"] == 4.0 and summary["wall_s"] == 5.0  # the slowest rank's
    assert summary["views"] == 840 and summary["samples_per_s"] == 210.0
    assert summary["wait_s"] == [0.5, 1.0] and summary["wait_share"] == [0.125, 0.25]
    assert (summary["kind"], summary["resumed_from"], summary["num_gs"]) == ("measured", 100, len(primitives))
    assert summary["model_sha256"] == primitives.sha256()
    assert load_ply(run.model).rows.tobytes() == primitives.rows.tobytes()


def test_the_last_batch_is_full_and_counted(run, tiny_options):
    job = load_job(replace(tiny_options, views=839))
    run.begin(job, data="tiny")
    publish(run, job)
    assert read_json(run.summary)["views"] == 840 and read_json(run.record)["views"] == 839


def test_progress_is_shared_between_maps_and_fits_the_ranks(run, job):
    run.begin(job, data="tiny")
    mine, theirs = run.map_progress(3), run.map_progress(3)
    np.testing.assert_array_equal(mine, [0, 0, 0])
    mine[1] = 42
    np.testing.assert_array_equal(theirs, [0, 42, 0])
    assert len(run.map_progress(2)) == 2 and len(run.map_progress(5)) == 5
