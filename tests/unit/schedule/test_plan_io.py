"""The plan file: round trip, bytes, what a reader sees, and every kind of damage."""

import dataclasses
import json

import numpy as np
import pytest

from odin.schedule.build import make_plan
from odin.schedule.plan_io import load_plan, plan_header, save_plan
from odin.schedule.validation import PlanError, validate_plan

SHA = "ab" * 32


@pytest.fixture(scope="module")
def scene(scenes):
    return scenes.line_of_views(12, test_every=6)


@pytest.fixture(scope="module")
def plan(scene):
    return make_plan(
        scene, scene_sha256=SHA, batch=3, ranks=2, num_steps=14, seed=4, structural_steps=(6,), balance=True
    )


@pytest.fixture
def path(plan, tmp_path):
    save_plan(plan, tmp_path / "plan.odin")
    return tmp_path / "plan.odin"


def test_round_trip(plan, scene, path):
    loaded = load_plan(path, scene, scene_sha256=SHA)
    for field in dataclasses.fields(plan):
        before, after = getattr(plan, field.name), getattr(loaded, field.name)
        if isinstance(before, np.ndarray):
            np.testing.assert_array_equal(before, after, strict=True)
        else:
            assert before == after


def test_the_same_plan_gives_the_same_bytes_and_leaves_nothing_else(plan, path):
    save_plan(load_plan(path), path.with_name("again.odin"))
    assert path.read_bytes() == path.with_name("again.odin").read_bytes()
    assert sorted(file.name for file in path.parent.iterdir()) == ["again.odin", "plan.odin"]


def test_the_first_forty_lines_are_the_header(plan, path):
    lines = path.read_bytes().split(b"\n")[:40]
    assert lines[0] == b"ODIN PLAN 1"
    end = lines.index(b"---- arrays, npz ----")
    header = json.loads(b"\n".join(lines[1:end]))
    assert header == plan_header(path)
    assert header["batch"] == 3 and header["steps"] == 14 and header["epochs"] == 4.2
    assert max(map(len, lines[:end])) < 180
    assert set(header["measures"]["cross-rank conflict, scopes, 1 back"]) == {"plan", "random"}


def test_an_unsound_plan_is_not_written_and_the_old_file_stays(plan, path):
    before = path.read_bytes()
    with pytest.raises(PlanError):
        save_plan(dataclasses.replace(plan, ranks=1), path)
    assert path.read_bytes() == before and len(list(path.parent.iterdir())) == 1


def _flip_bit(data, place):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"", "not a plan file"),
        (lambda data: b"ply\n" + data, "not a plan file"),
        (lambda data: data.replace(b"ODIN PLAN 1", b"ODIN PLAN 7", 1), "plan version: got '7', allowed: 1"),
        (lambda data: data[:200], "not valid JSON"),
        (lambda data: data[: data.index(b"\n----")], "are missing"),
        (lambda data: data[:-400], "cannot be read"),
        (lambda data: _flip_bit(data, data.index(b"NUMPY") + 200), "cannot be read"),
        (lambda data: data.replace(b'"seed": 4', b'"seed": "four"', 1), "'seed': got 'four', allowed: int"),
        (lambda data: data.replace(b'  "scene"', b'  "screen"', 1), "'scene': got None"),
        (lambda data: data.replace(b'"batch": 3', b'"batch": 5', 1), "'batch': got 5, but the arrays say 3"),
        (lambda data: data.replace(b'"ranks": 2', b'"ranks": 1', 1), "allowed: 0 to 0"),
        (lambda data: data.replace(b"[6]", b"[5]", 1), "phases end at the wrong steps"),
        (lambda data: data.replace(b"[6]", b'"6"', 1), "a list of step numbers"),
    ],
)
def test_damaged_files_are_refused(path, damage, words):
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(PlanError) as error:
        load_plan(path)
    assert words in str(error.value) and str(path) in str(error.value)


def test_a_plan_for_another_scene_is_refused(scenes, scene, path):
    with pytest.raises(PlanError, match="made for scene 'line' with sha256 abab"):
        load_plan(path, scene, scene_sha256="cd" * 32)
    with pytest.raises(PlanError, match="but the scene given is 'two_clusters'"):
        load_plan(path, scenes.two_clusters())
    with pytest.raises(PlanError, match="images or the test split changed"):
        load_plan(path, scenes.line_of_views(12, test_every=3))


def _put(name, index, value):
    def change(plan):
        array = getattr(plan, name).copy()
        array[index] = value
        return {name: array}

    return change


def _swap_across_epochs(plan):
    """A view of the first epoch changes places with one of the second: batches stay sound, epochs do not."""
    views = plan.views.copy()
    for first in range(10):
        for second in range(10, 20):
            sequence = views.ravel().copy()
            sequence[[first, second]] = sequence[[second, first]]
            changed = sequence.reshape(views.shape)
            if sequence[first] != sequence[second] and all(len(set(batch)) == 3 for batch in changed.tolist()):
                return {"views": changed}
    raise AssertionError("no such pair")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_put("views", (2, 1), 99), "view of step 3, slot 1: got 99, allowed: one of the 10 training views"),
        (_put("views", (2, 1), 0), "view of step 3, slot 1: got 0"),  # a test view
        (_put("views", (2, 1), -1), "got -1"),
        (_swap_across_epochs, "every training view exactly once in each epoch"),
        (_put("rank_of", (4, 0), 2), "rank of step 5, slot 0: got 2, allowed: 0 to 1"),
        (_put("rank_of", (4, 0), -1), "allowed: 0 to 1"),
        (_put("costs", (1, 2), np.nan), "costs of step 2, column 2: got nan"),
        (_put("conflicts", (3, 0), 1.5), "conflicts of step 4, column 0: got 1.5, allowed: 0 to 1"),
        (_put("windows", (0, 0), 2), "windows, entry 0: got [2,"),
        (
            lambda plan: {"windows": plan.phases[:1]},
            "the last of the windows ends at: got 6, allowed: the last step, 14",
        ),
        (_put("phases", (0, 1), 5), "phases, entry 1: got [7, 14], allowed: [first, last] with first = 6"),
        (lambda plan: {"structural_steps": (7,)}, "phases end at the wrong steps: got [6, 14]"),
        (lambda plan: {"windows": np.array([[1, 14]], np.int32)}, "14 steps, allowed: at most 4 steps"),
        (
            lambda plan: {"windows": np.array([[1, 4], [5, 8], [9, 12], [13, 14]], np.int32)},
            "window [5, 8]: got it crosses the structural change after step 6",
        ),
        (lambda plan: {"views": plan.views.astype(np.int64)}, "views has the wrong type: got int64, allowed: int32"),
        (lambda plan: {"views": plan.views[:, 0]}, "views has the wrong shape"),
        (lambda plan: {"costs": plan.costs[:-1]}, "costs has the wrong shape: got (13, 3)"),
        (lambda plan: {"conflicts": plan.conflicts[:, :0]}, "conflicts has the wrong shape"),
        (lambda plan: {"windows": plan.windows.ravel()}, "windows has the wrong shape"),
        (lambda plan: {"train_views": plan.train_views[::-1]}, "train_views: got an order that does not ascend"),
        (lambda plan: {"ordering": "sorted"}, "allowed: 'greedy' or 'random'"),
        (lambda plan: {"seed": -3}, "seed: got -3"),
    ],
)
def test_unsound_plans_are_refused(plan, change, words):
    with pytest.raises(PlanError) as error:
        validate_plan(dataclasses.replace(plan, **change(plan)), where="test.odin")
    assert words in str(error.value)
    assert str(error.value).startswith("test.odin: ") and "make the plan again" in str(error.value)


def test_a_view_twice_in_one_batch_is_refused(plan):
    views = plan.views.copy()
    views[7, 0] = views[7, 1]
    with pytest.raises(PlanError, match=r"batch of step 8: got .* each view at most once"):
        validate_plan(dataclasses.replace(plan, views=views))


def test_a_missing_file_is_not_a_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_plan(tmp_path / "none.odin")
