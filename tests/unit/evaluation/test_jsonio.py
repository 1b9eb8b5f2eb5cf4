"""JSON records: whole or absent, strict numbers, errors that name the key or the file."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from odin.data.jsonio import read_json, write_json


def test_round_trip_keeps_order_and_turns_numpy_into_numbers(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.json"
    write_json(path, {"b": np.float64(0.5), "a": np.arange(3), "p": Path("x/y"), "n": None, "t": (True, "é")})
    assert path.read_text(encoding="utf-8").splitlines()[1] == ' "b": 0.5,'
    assert list(read_json(path)) == ["b", "a", "p", "n", "t"]
    assert read_json(path) == {"b": 0.5, "a": [0, 1, 2], "p": "x/y", "n": None, "t": [True, "é"]}
    assert [entry.name for entry in path.parent.iterdir()] == ["a.json"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_refuses_non_finite_numbers_by_key_and_keeps_the_old_file(tmp_path: Path, bad: float) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"ok": 1})
    with pytest.raises(ValueError, match=r"a\.json: not written: \$\.views\[1\]\.psnr is (nan|-?inf)"):
        write_json(path, {"views": [{"psnr": 1.0}, {"psnr": bad}]})
    assert read_json(path) == {"ok": 1}


@pytest.mark.parametrize(("obj", "message"), [({"a": {1: 2}}, r"\$\.a has the key 1"), ({"a": {2}}, r"\$\.a .* set")])
def test_refuses_what_json_cannot_hold(tmp_path: Path, obj: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_json(tmp_path / "a.json", obj)
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize(
    ("text", "message"), [("", "empty file"), ('{"a": 1', "not valid JSON"), ('{"a": NaN}', "NaN is not a JSON number")]
)
def test_reading_names_the_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "half.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"half\.json: .*{message}"):
        read_json(path)
    with pytest.raises(ValueError, match=r"absent\.json: no such file"):
        read_json(tmp_path / "absent.json")
