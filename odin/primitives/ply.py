"""The PLY layout of 3DGS (graphdeco-inria), which the usual viewers open.

Opacities are logits, scales are logarithms, quaternions are wxyz; f_rest is stored channel by channel. A PLY holds
no optimizer state and no row ids: it is for looking and evaluating, not for going on with training.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from plyfile import PlyData, PlyElement, PlyParseError

from odin.primitives.primitive_set import PrimitiveSet, fresh, pack

_REST = 45
_FIELDS = (
    ["x", "y", "z", "nx", "ny", "nz"]
    + [f"f_dc_{i}" for i in range(3)]
    + [f"f_rest_{i}" for i in range(_REST)]
    + ["opacity"]
    + [f"scale_{i}" for i in range(3)]
    + [f"rot_{i}" for i in range(4)]
)


def save_ply(path: Path, primitives: PrimitiveSet) -> None:
    """Write all parameters, float32, without loss. Atomic."""
    num = len(primitives)
    rest = primitives.column("shN").reshape(num, 15, 3).transpose(0, 2, 1).reshape(num, _REST)
    values = np.concatenate(
        [
            primitives.column("means"),
            np.zeros((num, 3), np.float32),
            primitives.column("sh0"),
            rest,
            primitives.column("opacities"),
            primitives.column("scales"),
            primitives.column("quats"),
        ],
        axis=1,
    ).astype("<f4")
    vertices = np.ascontiguousarray(values).view([(name, "<f4") for name in _FIELDS])[:, 0]
    temporary = path.with_suffix(".ply.tmp")
    with open(temporary, "wb") as file:
        PlyData([PlyElement.describe(vertices, "vertex")], byte_order="<").write(file)
    os.replace(temporary, path)


def load_ply(path: Path) -> PrimitiveSet:
    """Parameters of a 3DGS PLY. Row ids are made anew and the optimizer state is zero: both are lost in a PLY.

    Raises ValueError naming the file where it is not such a PLY.
    """
    try:
        vertex = PlyData.read(str(path))["vertex"]
    except (OSError, PlyParseError, KeyError, ValueError) as error:
        raise ValueError(f"{path}: not a readable PLY file ({error}).") from error
    names = set(vertex.data.dtype.names)
    missing = [name for name in _FIELDS if name not in names and name not in ("nx", "ny", "nz")]
    if missing:
        raise ValueError(
            f"{path}: fields {missing[:4]}{'...' if len(missing) > 4 else ''} are missing ({len(missing)} of "
            f"{len(_FIELDS) - 3}). A 3DGS model with SH degree 3 is needed."
        )

    def columns(pattern: str, num: int) -> np.ndarray:
        return np.stack([np.asarray(vertex[pattern.format(i)], np.float32) for i in range(num)], axis=1)

    num = len(vertex.data)
    return fresh(
        pack(
            {
                "means": np.stack([np.asarray(vertex[axis], np.float32) for axis in "xyz"], axis=1),
                "quats": columns("rot_{}", 4),
                "scales": columns("scale_{}", 3),
                "opacities": np.asarray(vertex["opacity"], np.float32),
                "sh0": columns("f_dc_{}", 3),
                "shN": columns("f_rest_{}", _REST).reshape(num, 3, 15).transpose(0, 2, 1),
            }
        )
    )
