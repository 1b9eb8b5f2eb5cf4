"""Mitsuba 3: path-traced pictures, depths and visibility of a gallery scene. The only module that imports it.

Import it in worker processes only: it selects Mitsuba's variant and thread count for the whole process. One thread,
small blocks, a seed per view and at most one area emitter make results repeatable to the bit.
Legend: H, W image size in pixels, P points.
"""

from __future__ import annotations

from dataclasses import dataclass

import drjit
import mitsuba
import numpy as np

from odin.data.gallery.description import Description, Surface
from odin.data.gallery.meshes import Mesh
from odin.data.gallery.textures import to_srgb

mitsuba.set_variant("scalar_rgb")
drjit.set_thread_count(1)

_BLOCK_SIZE_PX = 16
_PICTURE_FILTER = {"type": "gaussian", "stddev": 0.65}  # pixels; a little soft, which averages noise out
_NEAR_M, _FAR_M = 0.02, 1000.0
_SELF_HIT_SHARE = 1e-3  # of a ray's length left untested before its end, so that a point does not hide itself
_AXES = np.diag([-1.0, -1.0, 1.0, 1.0])  # Mitsuba's camera looks along +z with x to the left and y up


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Geometry:
    """What a ray through the centre of each pixel hits."""

    positions: np.ndarray  # [H, W, 3] float64, metres
    normals: np.ndarray  # [H, W, 3] float64, unit vectors of the shading normal
    depths: np.ndarray  # [H, W] float32, metres along the camera's z axis; 0 where nothing was hit


class Renderer:
    """A scene loaded into Mitsuba, for pictures of one size."""

    def __init__(self, description: Description, *, width: int, height: int) -> None:
        self._description = description
        self._width, self._height = width, height
        self._scene = mitsuba.load_dict(_scene_entries(description))
        self._path_tracer = mitsuba.load_dict(
            {"type": "path", "max_depth": description.max_depth, "block_size": _BLOCK_SIZE_PX}
        )
        self._geometry_tracer = mitsuba.load_dict(
            {"type": "aov", "aovs": "position:position,normal:sh_normal,distance:depth", "block_size": _BLOCK_SIZE_PX}
        )

    def picture(self, view: int, seed: int) -> np.ndarray:
        """What that view's camera sees, tone-mapped. [H, W, 3] uint8, sRGB"""
        samples = self._description.samples_per_pixel
        sensor = self._sensor(view, {"type": "multijitter", "sample_count": samples, "seed": seed}, _PICTURE_FILTER)
        radiance = mitsuba.render(
            self._scene, sensor=sensor, integrator=self._path_tracer, spp=samples, seed=seed
        )  # [H, W, 3]
        return tone_map(np.array(radiance, np.float64), self._description.exposure)

    def geometry(self, view: int) -> Geometry:
        """What that view's pixel centres hit."""
        sensor = self._sensor(view, {"type": "stratified", "sample_count": 1, "jitter": False}, {"type": "box"})
        channels = mitsuba.render(self._scene, sensor=sensor, integrator=self._geometry_tracer, spp=1, seed=0)
        channels = np.array(channels, np.float64)  # [H, W, 7]
        positions, normals, hit = (channels[..., :3], channels[..., 3:6], channels[..., 6] > 0)
        world_to_camera = np.linalg.inv(self._description.camtoworlds[view])
        depths = (positions * world_to_camera[2, :3]).sum(-1) + world_to_camera[2, 3]  # no BLAS: its order may vary
        return Geometry(positions=positions, normals=normals, depths=np.where(hit, depths, 0).astype(np.float32))

    def sees(self, view: int, points: np.ndarray) -> np.ndarray:
        """Whether nothing stands between that view's camera and each of points [P, 3], metres. bool [P]"""
        origin = self._description.camtoworlds[view][:3, 3]
        offsets = points - origin
        lengths = np.linalg.norm(offsets, axis=1)
        directions = (offsets / lengths[:, None]).tolist()
        ends = (lengths * (1 - _SELF_HIT_SHARE)).tolist()
        start = origin.tolist()
        return np.array(
            [
                not self._scene.ray_test(mitsuba.Ray3f(start, direction, end, 0.0, []))
                for direction, end in zip(directions, ends, strict=True)
            ],
            bool,
        )

    def _sensor(self, view: int, sampler: dict, pixel_filter: dict) -> mitsuba.Sensor:
        to_world = self._description.camtoworlds[view] @ _AXES
        return mitsuba.load_dict(
            {
                "type": "perspective",
                "fov": self._description.fov_x_deg,
                "fov_axis": "x",
                "near_clip": _NEAR_M,
                "far_clip": _FAR_M,
                "to_world": mitsuba.ScalarTransform4f(to_world.tolist()),
                "sampler": sampler,
                "film": {
                    "type": "hdrfilm",
                    "width": self._width,
                    "height": self._height,
                    "pixel_format": "rgb",
                    "component_format": "float32",
                    "rfilter": pixel_filter,
                },
            }
        )


def tone_map(radiance: np.ndarray, exposure: float) -> np.ndarray:
    """Displayed value of linear radiance, uint8 of the same shape: `x / (1 + x)` of the exposed radiance, in sRGB.

    The curve (Reinhard et al. 2002, eq. 3) never clips, so lamps and the things they light keep their structure.
    """
    exposed = exposure * np.maximum(radiance, 0)
    return np.rint(to_srgb(exposed / (1 + exposed)) * 255).astype(np.uint8)


def _scene_entries(description: Description) -> dict:
    entries: dict = {"type": "scene"}
    for surface in description.surfaces:
        entries[surface.name] = _mesh(surface.name, surface.mesh, {"bsdf": _material(surface)})
    if description.lamp is not None:
        texture = {"type": "bitmap", "bitmap": mitsuba.Bitmap(description.lamp.radiance), "raw": True}
        black = {"type": "diffuse", "reflectance": {"type": "rgb", "value": 0.0}}
        plugins = {"bsdf": black, "emitter": {"type": "area", "radiance": texture}}
        entries["lamp"] = _mesh("lamp", description.lamp.mesh, plugins)
    if description.sun is not None:
        entries["sun"] = {
            "type": "directional",
            "direction": list(description.sun.direction),
            "irradiance": {"type": "rgb", "value": list(description.sun.irradiance)},
        }
    if description.bulb is not None:
        entries["bulb"] = {
            "type": "point",
            "position": list(description.bulb.position),
            "intensity": {"type": "rgb", "value": list(description.bulb.intensity)},
        }
    if description.sky is not None:
        entries["sky"] = {"type": "constant", "radiance": {"type": "rgb", "value": list(description.sky)}}
    return entries


def _material(surface: Surface) -> dict:
    texture = {"type": "bitmap", "bitmap": mitsuba.Bitmap(np.array(surface.texture)), "wrap_mode": "repeat"}
    if surface.roughness is None:
        inner = {"type": "diffuse", "reflectance": texture}
    else:
        inner = {"type": "roughplastic", "diffuse_reflectance": texture, "alpha": surface.roughness}
    return {"type": "twosided", "bsdf": inner}


def _mesh(name: str, mesh: Mesh, plugins: dict) -> mitsuba.Mesh:
    properties = mitsuba.Properties()
    for key, plugin in plugins.items():
        properties[key] = mitsuba.load_dict(plugin)
    loaded = mitsuba.Mesh(
        name,
        len(mesh.positions),
        mesh.num_faces,
        has_vertex_normals=mesh.normals is not None,
        has_vertex_texcoords=True,
        props=properties,
    )
    parameters = mitsuba.traverse(loaded)
    parameters["vertex_positions"] = mesh.positions.ravel()
    parameters["vertex_texcoords"] = mesh.uvs.ravel()
    parameters["faces"] = mesh.faces.ravel()
    if mesh.normals is not None:
        parameters["vertex_normals"] = mesh.normals.ravel()
    parameters.update()
    return loaded
