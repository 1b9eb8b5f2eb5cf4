"""Build a gallery scene: an ordinary COLMAP folder with true cameras, rendered on the spot without any download.

    from odin.data.gallery import build
    build("rooms", Path("data/rooms"))

The folder appears under its name only when it is complete. Work goes on in a hidden folder beside it, view by view, so
that a build which was interrupted continues where it stopped.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from odin.data.gallery import surface
from odin.data.gallery.description import Description, intrinsics
from odin.data.gallery.scenes import DEFAULT_VIEWS, SCENES
from odin.data.gallery.workers import for_each_view

NAMES: tuple[str, ...] = tuple(SCENES)
GALLERY_VERSION = 1  # raise it with every change that changes a file's bytes
MIN_VIEWS = 6  # one for each of the rooms
MANIFEST = "gallery.json"
_PARTS = "parts"  # folder of surface points, a file a view, while a build is under way


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Everything that decides the bytes of a built scene, besides the versions of libraries."""

    name: str
    width: int
    num_views: int
    seed: int
    depth: bool
    gallery_version: int = GALLERY_VERSION

    @property
    def height(self) -> int:
        return self.width * 3 // 4

    def describe(self) -> Description:
        return SCENES[self.name](self.num_views, self.seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    identity: Identity
    folder: Path


def build(
    name: str,
    out: Path,
    *,
    width: int = 160,
    num_views: int | None = None,
    seed: int = 0,
    depth: bool = False,
    processes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Render a scene of `NAMES` into the folder `out` and return `out`; a complete folder of the same scene is reused.

    It holds images/*.png (`width` x 3/4 `width` pixels), sparse/0 (COLMAP, binary, one PINHOLE camera, surface points
    with tracks), gallery.json (what it is and a hash of each file) and, with `depth`, depth/*.npz: array `depth`
    [H, W] float32, the distance of what each pixel's centre shows along the camera's z axis in metres (0: nothing).
    `processes` (default: the cores this process may use) changes no byte. `progress(done, total)` is called as each
    view is finished. Workers are spawned: a script that calls this needs `if __name__ == "__main__":`.

    Raises ValueError for an unknown name, a size or number of views out of range, a missing library, and where `out`
    holds anything else than this scene.
    """
    identity = _identity(name, width, num_views, seed, depth)
    if processes is not None and processes < 1:
        raise ValueError(f"gallery: processes = {processes}, must be at least 1")
    out = Path(out)
    if _missing_files(out, identity) == []:
        return out
    _require_libraries()
    with _workspace(out, identity) as work:
        missing = _missing_files(out, identity)  # another process may have built it while this one waited
        if missing == []:
            shutil.rmtree(work, ignore_errors=True)
            return out
        job = _Job(identity=identity, folder=work)
        num_processes = processes or len(os.sched_getaffinity(0))
        _render_views(job, num_processes, progress)
        _write_sparse(job, num_processes)
        shutil.rmtree(work / _PARTS)
        _write_manifest(job)
        _publish(work, out, missing)
    return out


def _identity(name: str, width: int, num_views: int | None, seed: int, depth: bool) -> Identity:
    if name not in NAMES:
        raise ValueError(f"gallery: unknown scene {name!r}; there are {', '.join(NAMES)}")
    if width < 16 or width % 4:
        raise ValueError(f"gallery: width = {width} pixels, must be a multiple of 4 and at least 16")
    if num_views is None:
        num_views = DEFAULT_VIEWS[name]
    if num_views < MIN_VIEWS:
        raise ValueError(f"gallery: num_views = {num_views}, must be at least {MIN_VIEWS}")
    if seed < 0:
        raise ValueError(f"gallery: seed = {seed}, must not be negative")
    return Identity(name=name, width=width, num_views=num_views, seed=seed, depth=depth)


def _require_libraries() -> None:
    for module, package in (("mitsuba", "mitsuba"), ("skimage", "scikit-image")):
        if importlib.util.find_spec(module) is None:
            raise ValueError(f"gallery: {package} is not installed; install it with `pip install odin[gallery]`")


def _missing_files(out: Path, identity: Identity) -> list[str] | None:
    """Files that `out` lacks of the scene; None where it is absent or empty. ValueError where it is anything else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    advice = "choose another folder or remove this one"
    manifest = out / MANIFEST
    if not manifest.is_file():
        raise ValueError(f"gallery: {out} exists and holds something else (no {MANIFEST}); {advice}")
    try:
        content = json.loads(manifest.read_text())
        found, files = dict(content["identity"]), dict(content["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"gallery: {manifest} cannot be read ({error!r}); {advice}") from error
    wanted = asdict(identity)
    differing = [key for key in sorted(found.keys() | wanted.keys()) if found.get(key) != wanted.get(key)]
    if differing:
        was = ", ".join(f"{key} = {found.get(key)!r}" for key in differing)
        new = ", ".join(f"{key} = {wanted.get(key)!r}" for key in differing)
        raise ValueError(f"gallery: {out} holds a scene with {was}, wanted is {new}; {advice}")
    missing = []
    for path, sha256 in files.items():
        if not (out / path).is_file():
            missing.append(path)
        elif _sha256(out / path) != sha256:
            raise ValueError(f"gallery: {out / path} was changed since it was built; {advice}")
    return missing


@contextmanager
def _workspace(out: Path, identity: Identity) -> Iterator[Path]:
    """The hidden folder beside `out` for this identity, held by this process alone for as long as the context lasts."""
    digest = hashlib.sha256(json.dumps(asdict(identity), sort_keys=True).encode()).hexdigest()[:8]
    work = out.absolute().parent / f".{out.name}.{digest}.partial"
    work.mkdir(parents=True, exist_ok=True)
    handle = os.open(work, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for folder in ("images", "sparse/0", _PARTS, *(["depth"] if identity.depth else [])):
            (work / folder).mkdir(parents=True, exist_ok=True)
        yield work
    finally:
        os.close(handle)


def _stem(view: int) -> str:
    return f"{view:04d}"


def _render_views(job: _Job, processes: int, progress: Callable[[int, int], None] | None) -> None:
    """Render every view that has no part yet: the part is a view's last file."""
    total = job.identity.num_views
    views = [view for view in range(total) if not (job.folder / _PARTS / f"{_stem(view)}.npz").is_file()]
    done = total - len(views)
    if progress is not None and done:
        progress(done, total)

    def count(view: int, result: None) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    for_each_view(_start_rendering, job, views, processes=processes, on_result=count)


def _start_rendering(job: _Job) -> Callable[[int], None]:
    """In a worker: load the scene and return what renders one view."""
    from odin.data.gallery.render import Renderer

    identity, description = job.identity, job.identity.describe()
    renderer = Renderer(description, width=identity.width, height=identity.height)
    points_per_view = -(-description.num_points // identity.num_views)

    def render(view: int) -> None:
        picture = renderer.picture(
            view, seed=int(np.random.SeedSequence([identity.seed, 3, view]).generate_state(1)[0])
        )
        geometry = renderer.geometry(view)
        rng = np.random.default_rng([identity.seed, 4, view])
        points = surface.draw_points(
            geometry.positions, geometry.normals, geometry.depths, picture, points_per_view, rng
        )
        with _written(job.folder / "images" / f"{_stem(view)}.png") as temporary:
            Image.fromarray(picture).save(temporary, format="PNG")
        if identity.depth:
            with _written(job.folder / "depth" / f"{_stem(view)}.npz") as temporary, open(temporary, "wb") as file:
                np.savez_compressed(file, depth=geometry.depths)
        with _written(job.folder / _PARTS / f"{_stem(view)}.npz") as temporary, open(temporary, "wb") as file:
            np.savez(file, **{key: getattr(points, key) for key in ("positions", "normals", "colors")})

    return render


def _write_sparse(job: _Job, processes: int) -> None:
    """Find out which views see which points and write the sparse model."""
    identity, description = job.identity, job.identity.describe()
    points = _load_points(job)
    found: dict[int, surface.Observations] = {}

    def keep(view: int, result: surface.Observations) -> None:
        found[view] = result

    for_each_view(_start_observing, job, range(identity.num_views), processes=processes, on_result=keep)
    surface.write_model(
        job.folder / "sparse" / "0",
        [f"{_stem(view)}.png" for view in range(identity.num_views)],
        description.camtoworlds,
        intrinsics(description.fov_x_deg, identity.width, identity.height),
        (identity.width, identity.height),
        points,
        [found[view] for view in range(identity.num_views)],
    )


def _start_observing(job: _Job) -> Callable[[int], surface.Observations]:
    """In a worker: load the scene and all points and return what finds those that one view sees."""
    from odin.data.gallery.render import Renderer

    identity, description, points = (job.identity, job.identity.describe(), _load_points(job))
    width, height = identity.width, identity.height
    renderer = Renderer(description, width=width, height=height)
    K = intrinsics(description.fov_x_deg, width, height)

    def observe(view: int) -> surface.Observations:
        indices, pixels = surface.candidates(points, description.camtoworlds[view], K, width, height)
        seen = renderer.sees(view, points.positions[indices])
        rng = np.random.default_rng([identity.seed, 5, view])
        return surface.observe(indices[seen], pixels[seen], width, height, rng)

    return observe


def _load_points(job: _Job) -> surface.SurfacePoints:
    parts = []
    for view in range(job.identity.num_views):
        with np.load(job.folder / _PARTS / f"{_stem(view)}.npz") as arrays:
            parts.append(surface.SurfacePoints(**arrays))
    return surface.join(parts)


def _write_manifest(job: _Job) -> None:
    files = sorted(path for path in job.folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    content: dict[str, Any] = {
        "identity": asdict(job.identity),
        "libraries": {name: importlib.metadata.version(name) for name in ("mitsuba", "numpy", "scikit-image")},
        "files": {path.relative_to(job.folder).as_posix(): _sha256(path) for path in files},
    }
    with _written(job.folder / MANIFEST) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n")


def _publish(work: Path, out: Path, missing: list[str] | None) -> None:
    """Rename the finished folder, or only add the files that `out` lacked."""
    if missing is None:
        os.replace(work, out)
        return
    wanted = json.loads((out / MANIFEST).read_text())["files"]
    for path in missing:
        if _sha256(work / path) != wanted[path]:
            raise ValueError(
                f"gallery: {out / path} is missing and comes out differently with the libraries installed now; "
                f"remove {out} to build all of it anew"
            )
    for path in missing:
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(work / path, out / path)
    shutil.rmtree(work)


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` that takes its place when the block ends well."""
    temporary = path.with_name(f".{path.name}.tmp")
    yield temporary
    os.replace(temporary, path)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
