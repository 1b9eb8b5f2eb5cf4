"""Morton codes against a bit-by-bit reference."""

import numpy as np
import pytest

from odin.primitives.morton import morton_codes, morton_order


def _reference(cell: np.ndarray, bits: int) -> int:
    code = 0
    for i in range(bits):
        for axis in range(3):
            code |= ((int(cell[axis]) >> i) & 1) << (3 * i + axis)
    return code


@pytest.mark.parametrize("bits", [1, 5, 10, 21])
def test_codes_interleave_the_bits_of_the_cells(bits):
    points = np.random.default_rng(0).normal(size=(200, 3)) * [1.0, 3.0, 0.2]
    low, high = np.quantile(points, (0.01, 0.99), axis=0)
    width = (high - low).max()
    cells = np.clip(np.floor(((points - (low + high) / 2) / width + 0.5) * 2**bits), 0, 2**bits - 1)
    assert morton_codes(points, bits).tolist() == [_reference(cell, bits) for cell in cells]


def test_eight_corners_come_in_z_order():
    corners = np.array([[x, y, z] for z in (0, 1) for y in (0, 1) for x in (0, 1)], np.float32)
    assert morton_codes(corners, bits=1).tolist() == list(range(8))
    assert morton_order(corners[::-1]).tolist() == list(range(7, -1, -1))


def test_a_far_point_does_not_coarsen_the_others():
    points = np.random.default_rng(1).uniform(size=(1000, 3))
    far = np.concatenate([points, [[1e9, -1e9, 1e9]]])
    assert len(np.unique(morton_codes(far, bits=8)[:1000])) > 900


def test_equal_points_keep_their_order():
    points = np.zeros((7, 3), np.float32)
    assert morton_codes(points).tolist() == [morton_codes(points)[0]] * 7
    assert morton_order(points).tolist() == list(range(7))


def test_no_points():
    assert morton_codes(np.zeros((0, 3))).shape == (0,)
    assert morton_order(np.zeros((0, 3))).dtype == np.int64


@pytest.mark.parametrize(
    ("points", "bits", "words"),
    [
        (np.zeros((4, 2)), 21, "expected [N, 3]"),
        (np.zeros((4, 3)), 22, "allowed are 1 to 21"),
        (np.array([[0.0, 0, 0], [0, np.nan, 0]]), 21, "first is row 1"),
    ],
)
def test_refusals_say_what_is_wrong(points, bits, words):
    with pytest.raises(ValueError) as error:
        morton_codes(points, bits)
    assert words in str(error.value)
