import numpy as np

from odin.primitives.random import normals, philox4x32


def test_known_answers():
    """Vectors published with the Random123 library (philox 4x32, 10 rounds)."""
    zeros = philox4x32(*(np.uint32(0),) * 6)
    assert [int(w) for w in zeros] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = philox4x32(*(np.uint32(0xFFFFFFFF),) * 6)
    assert [int(w) for w in ones] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = philox4x32(*map(np.uint32, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)))
    assert [int(w) for w in pi] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_values_depend_on_the_row_and_not_on_its_place():
    ids = np.array([7, 3, 2**40 + 1, 11])
    values = normals(5, 9, ids, 6)
    for place in np.random.default_rng(0).permutation(4):
        np.testing.assert_array_equal(normals(5, 9, ids[[place]], 6)[0], values[place])
    assert not np.array_equal(normals(5, 10, ids, 6), values)
    assert not np.array_equal(normals(6, 9, ids, 6), values)
    np.testing.assert_array_equal(normals(5, 9, ids, 3), values[:, :3])


def test_moments_are_those_of_the_normal_distribution():
    values = normals(0, 1, np.arange(50_000), 4).astype(np.float64)
    assert abs(values.mean()) < 0.01 and abs(values.std() - 1) < 0.01
    assert abs((values**3).mean()) < 0.03 and abs((values**4).mean() - 3) < 0.1
    assert np.abs(np.corrcoef(values.T) - np.eye(4)).max() < 0.02
