"""Options are checked one by one; a run's identity holds what decides its model and nothing else."""

from dataclasses import fields, replace

import pytest

from odin.pipelines.preset import SMALL
from odin.pipelines.protocol import Budget
from odin.training import options as options_module
from odin.training.options import TrainOptions, file_sha256, identity

OPTIONS = TrainOptions(scene_dir="scene", plan="plan.odin")
SCIENTIFIC = {"preset": "paper", "mode": "quality", "ranks": 2, "batch": 8, "views": 999, "seed": 1, "cap": 12_345}
OPERATIONAL = {
    "scene_dir": "elsewhere", "plan": "other.odin", "out": "there", "transport": "gloo", "device": "cpu",
    "timeout_s": 9.0, "checkpoint_every": 3, "pin": False, "delay_s": 0.5, "refine_scopes": False, "announce": False,
}  # fmt: skip


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"ranks": 0}, "ranks is 0; it must be positive."),
        ({"ranks": -2}, "ranks is -2; it must be positive."),
        ({"batch": 0}, "batch is 0; it must be positive."),
        ({"views": 0}, "views is 0; it must be positive."),
        ({"timeout_s": 0.0}, "timeout_s is 0.0; it must be positive."),
        ({"timeout_s": float("nan")}, "timeout_s is nan; it must be positive."),
        ({"mode": "fast"}, "mode is 'fast'; allowed: ddp, sync, quality."),
        ({"transport": "mpi"}, "transport is 'mpi'; allowed: auto, shared-memory, gloo."),
        ({"device": "tpu"}, "device is 'tpu'; allowed: auto, cpu, cuda."),
        ({"seed": -1}, "seed is -1; allowed: 0 to 2^63 - 1."),
        ({"seed": 2**63}, f"seed is {2**63}; allowed: 0 to 2^63 - 1."),
        ({"checkpoint_every": -1}, "checkpoint_every is -1;"),
        ({"delay_s": -0.1}, "delay_s is -0.1;"),
        ({"cap": 0}, "cap is 0; it must be at least 1."),
        ({"pipeline": "none"}, "pipeline 'none' is not known"),
        ({"preset": "none"}, "preset 'none' is not known for pipeline 3dgs"),
    ],
)
def test_each_bad_option_has_one_message(changes, message):
    OPTIONS.validate()
    with pytest.raises(ValueError) as caught:
        replace(OPTIONS, **changes).validate()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_values_at_the_borders_are_allowed():
    replace(OPTIONS, ranks=1, batch=1, views=1, seed=2**63 - 1, checkpoint_every=0, delay_s=0.0, cap=1).validate()
    for mode in ("ddp", "sync", "quality"):
        replace(OPTIONS, mode=mode).validate()


def test_the_budget_and_the_preset_follow_from_the_options():
    assert OPTIONS.budget == Budget(views=OPTIONS.views, batch=OPTIONS.batch)
    assert OPTIONS.resolve_preset() is SMALL
    assert replace(OPTIONS, cap=7).resolve_preset() == replace(SMALL, cap=7)


def hashed(options=OPTIONS, scene="s", plan="p"):
    return identity(options, scene_sha256=scene, plan_sha256=plan)


def test_every_option_is_known_to_be_scientific_or_operational():
    names = {field.name for field in fields(TrainOptions)}
    assert names == {*SCIENTIFIC, *OPERATIONAL, "pipeline"}


@pytest.mark.parametrize("name, value", SCIENTIFIC.items())
def test_what_decides_the_model_enters_the_identity(name, value):
    assert hashed(replace(OPTIONS, **{name: value})) != hashed()


@pytest.mark.parametrize("name, value", OPERATIONAL.items())
def test_what_is_operational_does_not_enter(name, value):
    assert getattr(OPTIONS, name) != value
    assert hashed(replace(OPTIONS, **{name: value})) == hashed()


def test_scene_plan_pipeline_and_preset_constants_enter(monkeypatch):
    assert len({hashed(), hashed(scene="t"), hashed(plan="q")}) == 3
    before = hashed()

    class Other:
        name = "other"
        presets = {"small": SMALL}

    monkeypatch.setattr(options_module, "get_pipeline", lambda name: Other())
    assert hashed(replace(OPTIONS, pipeline="other")) != before
    Other.presets = {"small": replace(SMALL, lr_means=1.0)}
    assert hashed() != before


def test_a_cap_equal_to_the_presets_changes_nothing():
    assert hashed(replace(OPTIONS, cap=SMALL.cap)) == hashed()


def test_file_sha256_is_the_known_value(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    assert file_sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
