"""Run directories as frozen records: the only door through which results reach tables and figures.

A run directory holds ``run.json`` (what was asked for), ``summary.json`` (how it went; written last by training),
``metrics.json`` (how good the model is; written by evaluation) and ``spans/`` (see `odin.report.spans`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from odin.data.jsonio import read_json

Kind = Literal["measured", "emulated", "simulated"]

# Entries of run.json that say where, when or under which seed a run was done, or follow from its scene: they do not
# tell two settings apart. All others do.
OPERATIONAL_OPTIONS = frozenset(
    {"checkpoint_every", "command", "data", "device", "host", "identity", "kind", "log_level", "num_test_views"}
    | {"num_threads", "num_train_views", "out", "plan", "plan_sha256", "port", "resume", "resumed", "run_dir"}
    | {"scene_dir", "started_utc", "threads", "timeout_s", "trace", "version"}
)
# What was found out only when the run began, and is a setting like any other.
_FOUND_OPTIONS = ("transport", "renderer")


class _Edge(BaseModel):
    # Training may record more than tables need; a *missing* entry is an error.
    model_config = ConfigDict(extra="allow", allow_inf_nan=False, frozen=True)


_T = TypeVar("_T", bound=_Edge)


class _Run(_Edge):
    scene: str
    scene_sha256: str
    pipeline: str
    preset: str = ""
    mode: str
    ranks: int = Field(ge=1)
    batch: int = Field(ge=1)
    views: int = Field(ge=1)
    steps: int = Field(ge=1)
    seed: int


class _Summary(_Edge):
    kind: Kind = "measured"
    samples_per_s: float = Field(gt=0)
    wall_s: float = Field(ge=0)
    train_s: float = Field(gt=0)
    wait_s: tuple[float, ...]
    wait_share: tuple[Annotated[float, Field(ge=0, le=1.01)], ...]  # clocks are read at slightly different times
    num_gs: int = Field(ge=1)
    model_sha256: str
    steps: int
    views: int
    transport: str | None = None
    renderer: str | None = None


class _Mean(_Edge):
    psnr: float
    ssim: float
    lpips: float | None
    num_views: int = Field(ge=1)


class _View(_Edge):
    name: str


class _Metrics(_Edge):
    kind: Kind
    protocol: dict[str, Any]
    definitions: dict[str, Any] = {}
    mean: _Mean
    lpips_reason: str | None
    num_gs: int
    model_sha256: str
    views: tuple[_View, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Quality:
    """Means over the test views, and what they depend on."""

    psnr: float  # dB
    ssim: float
    lpips: float | None
    lpips_reason: str | None
    protocol: Mapping[str, Any]  # fields of `odin.data.scene.Protocol`
    definitions: Mapping[str, Any]  # of the metrics, LPIPS weights included
    test_names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunRecord:
    """One finished training run."""

    path: Path
    scene: str
    scene_sha256: str
    pipeline: str
    preset: str
    mode: str
    ranks: int  # world size
    batch: int  # images per optimizer step, over all ranks
    views: int  # images seen in the whole run
    steps: int
    seed: int
    kind: Kind
    options: Mapping[str, Any]  # what else was asked for, flat ("admission.epsilon"), without `OPERATIONAL_OPTIONS`
    samples_per_s: float  # images per second of training time
    wall_s: float
    train_s: float
    wait_s: tuple[float, ...]  # per rank
    wait_share: tuple[float, ...]  # per rank, of training time
    num_gs: int
    model_sha256: str
    quality: Quality | None  # None where evaluation has not run

    @property
    def name(self) -> str:
        """Short identity for messages."""
        return f"{self.scene}/{self.pipeline}/{self.mode} W={self.ranks} seed={self.seed} ({self.path})"

    @property
    def judged(self) -> Quality:
        """The quality of a run that is known to have been evaluated (`require_quality`)."""
        assert self.quality is not None, self.name
        return self.quality

    @property
    def mean_wait_share(self) -> float:
        return sum(self.wait_share) / len(self.wait_share)


def load_run(path: Path) -> RunRecord:
    """Read and check one run directory.

    Raises ValueError naming file and field: not a run directory, training unfinished, files of different runs mixed.
    """
    path = Path(path)
    if not (path / "run.json").is_file():
        raise ValueError(f"{path}: not a run directory (no run.json).")
    run = _parse(_Run, path / "run.json")
    if not (path / "summary.json").is_file():
        raise ValueError(f"{path}: training has not finished (no summary.json). Resume or delete this run.")
    summary = _parse(_Summary, path / "summary.json")
    # The last batch is full: a run sees up to one batch more views than asked for.
    if summary.steps != run.steps or not 0 <= summary.views - run.views < run.batch:
        raise ValueError(
            f"{path}: summary.json counts {summary.steps} steps and {summary.views} views, run.json asks for "
            f"{run.steps} and {run.views}. The run was cut short or its files are of two runs: train it again."
        )
    for field in ("wait_s", "wait_share"):
        if len(getattr(summary, field)) != run.ranks:
            raise ValueError(
                f"{path / 'summary.json'}: {field} has {len(getattr(summary, field))} entries for {run.ranks} ranks."
            )
    options = dict(run.model_extra or {})
    options |= {key: found for key in _FOUND_OPTIONS if (found := getattr(summary, key)) is not None}
    return RunRecord(
        path=path,
        scene=run.scene,
        scene_sha256=run.scene_sha256,
        pipeline=run.pipeline,
        preset=run.preset,
        mode=run.mode,
        ranks=run.ranks,
        batch=run.batch,
        views=summary.views,
        steps=run.steps,
        seed=run.seed,
        kind=summary.kind,
        options=dict(_flat({key: value for key, value in options.items() if key not in OPERATIONAL_OPTIONS})),
        samples_per_s=summary.samples_per_s,
        wall_s=summary.wall_s,
        train_s=summary.train_s,
        wait_s=summary.wait_s,
        wait_share=summary.wait_share,
        num_gs=summary.num_gs,
        model_sha256=summary.model_sha256,
        quality=_quality(path / "metrics.json", summary),
    )


def load_runs(paths: Iterable[Path]) -> tuple[RunRecord, ...]:
    """Records of run directories, and of all run directories anywhere below folders that are none, sorted by path."""
    found: set[Path] = set()
    for path in map(Path, paths):
        below = [path] if (path / "run.json").is_file() else [file.parent for file in path.rglob("run.json")]
        if not below:
            raise ValueError(f"{path}: no run directory here or below (no run.json).")
        found.update(below)
    return tuple(load_run(path) for path in sorted(found))


def require_quality(records: Iterable[RunRecord]) -> tuple[RunRecord, ...]:
    """The same records. Raises ValueError listing those that were not evaluated."""
    records = tuple(records)
    unjudged = [run.name for run in records if run.quality is None]
    if unjudged:
        raise ValueError(f"{len(unjudged)} runs have no metrics.json: {'; '.join(unjudged)}. Evaluate them first.")
    return records


def _quality(path: Path, summary: _Summary) -> Quality | None:
    if not path.is_file():
        return None
    metrics = _parse(_Metrics, path)
    for field in ("model_sha256", "num_gs", "kind"):
        ours, theirs = getattr(metrics, field), getattr(summary, field)
        if ours != theirs:
            raise ValueError(f"{path}: {field} is {ours}, summary.json has {theirs}. Evaluate the run again.")
    names = tuple(view.name for view in metrics.views)
    if len(set(names)) != metrics.mean.num_views or len(names) != metrics.mean.num_views:
        raise ValueError(
            f"{path}: means over {metrics.mean.num_views} views, but {len(names)} rows with {len(set(names))} names."
        )
    if metrics.mean.lpips is None and not metrics.lpips_reason:
        raise ValueError(f"{path}: no LPIPS and no lpips_reason. Evaluate the run again.")
    return Quality(
        psnr=metrics.mean.psnr,
        ssim=metrics.mean.ssim,
        lpips=metrics.mean.lpips,
        lpips_reason=metrics.lpips_reason,
        protocol=metrics.protocol,
        definitions=metrics.definitions,
        test_names=names,
    )


def _parse(model: type[_T], path: Path) -> _T:
    content = read_json(path)
    try:
        return model.model_validate(content)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors()]
        raise ValueError(f"{path}: {'; '.join(problems)}.") from error


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Nested mappings as dotted keys; lists as JSON text, so that every value can be compared and printed."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value) if isinstance(value, list) else value
