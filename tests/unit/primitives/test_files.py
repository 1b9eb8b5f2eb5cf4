import numpy as np
import pytest
from plyfile import PlyData

from odin.primitives.checkpoint import Checkpoint, list_checkpoints, load_checkpoint, newest_checkpoint, save_checkpoint
from odin.primitives.ply import load_ply, save_ply
from odin.primitives.primitive_set import COLUMNS, ROW_FLOATS, concatenate, fresh


@pytest.fixture
def primitives():
    rows = np.zeros((7, ROW_FLOATS), np.float32)
    rows[:, :59] = np.random.default_rng(0).normal(size=(7, 59))
    p = fresh(rows, first_id=100, version=3)
    p.exp_avg[:] = 0.5
    p.stats[:, 1] = 2
    return p


def checkpoint(primitives, step=3):
    return Checkpoint(primitives=primitives, step=step, identity="abc", meters={"train_s": 1.5})


def test_checkpoint_round_trip_keeps_every_bit(tmp_path, primitives):
    loaded = load_checkpoint(save_checkpoint(tmp_path, checkpoint(primitives)))
    assert (loaded.step, loaded.identity, loaded.meters) == (3, "abc", {"train_s": 1.5})
    assert loaded.primitives.next_id == 107
    for name, array in primitives.arrays().items():
        assert loaded.primitives.arrays()[name].tobytes() == array.tobytes()
        assert loaded.primitives.arrays()[name].dtype == array.dtype


def test_only_the_newest_checkpoints_are_kept_and_leftovers_are_ignored(tmp_path, primitives):
    for step in (1, 2, 10):
        save_checkpoint(tmp_path, checkpoint(primitives, step))
    (tmp_path / "step-0000011.tmp").write_bytes(b"half")
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step-0000002.npz", "step-0000010.npz"]
    assert newest_checkpoint(tmp_path).step == 10
    assert newest_checkpoint(tmp_path / "none") is None


def test_a_truncated_checkpoint_is_named(tmp_path, primitives):
    path = save_checkpoint(tmp_path, checkpoint(primitives))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="step-0000003.npz: not a readable checkpoint"):
        load_checkpoint(path)


def test_ply_round_trip_and_layout(tmp_path, primitives):
    save_ply(tmp_path / "model.ply", primitives)
    loaded = load_ply(tmp_path / "model.ply")
    assert loaded.rows.tobytes() == primitives.rows.tobytes()
    vertex = PlyData.read(str(tmp_path / "model.ply"))["vertex"]
    # f_rest is channel-major: f_rest_15 is the first higher coefficient of green
    np.testing.assert_array_equal(vertex["f_rest_15"], primitives.column("shN").reshape(7, 15, 3)[:, 0, 1])
    np.testing.assert_array_equal(vertex["rot_0"], primitives.column("quats")[:, 0])
    assert vertex.data.dtype.names[:6] == ("x", "y", "z", "nx", "ny", "nz")


def test_ply_errors_name_the_file(tmp_path):
    (tmp_path / "bad.ply").write_bytes(b"ply\nnonsense")
    with pytest.raises(ValueError, match="bad.ply"):
        load_ply(tmp_path / "bad.ply")


def test_taking_and_joining_rows(primitives):
    taken = primitives.take(np.array([5, 1]))
    np.testing.assert_array_equal(taken.row_ids, [105, 101])
    joined = concatenate(taken, fresh(np.ones((2, ROW_FLOATS)), first_id=primitives.next_id))
    joined.check()
    assert joined.next_id == 109 and len(joined) == 4
    assert joined.sha256() != primitives.sha256()


def test_non_finite_rows_are_counted_by_parameter(primitives):
    primitives.check_finite(5)
    primitives.rows[2, COLUMNS["scales"]] = np.inf
    primitives.rows[4, 0] = np.nan
    with pytest.raises(ValueError, match=r"step 5: non-finite parameters in \{'means': 1, 'scales': 1\}.*row id 102"):
        primitives.check_finite(5)
