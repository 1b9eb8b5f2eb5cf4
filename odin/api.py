"""The commands as functions: each takes plain values, does one thing and returns what it made.

The command line and the workflow call these; so can a notebook.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from odin.data.scene_io import load_image, load_scene
from odin.data.jsonio import read_json, write_json
from odin.data.prepare import prepare
from odin.data.scene import Scene
from odin.distributed.launch import launch
from odin.evaluation.metrics import LpipsWeights, load_lpips
from odin.evaluation.pictures import save_comparison, save_render
from odin.evaluation.protocol import evaluate, metrics_record, test_names
from odin.pipelines.protocol import get_pipeline
from odin.primitives.ply import load_ply
from odin.rendering.select import select_renderer
from odin.report import provenance
from odin.schedule.build import make_plan, with_ranks
from odin.schedule.plan import Plan
from odin.schedule.plan_io import save_plan
from odin.training.job import load_job
from odin.training.options import TrainOptions, file_sha256
from odin.training.render import ModelRenderer
from odin.training.run_dir import RunDir

Progress = Callable[[int], None]


def is_prepared(folder: Path) -> bool:
    return (folder / "scene.npz").exists()


def scene_folder(data: str, out: Path, **prepare_options) -> Path:
    """The prepared scene for `data`: itself where it is one, else prepared into ``out/scene``."""
    if is_prepared(Path(data)):
        return Path(data)
    prepare(data, out / "scene", **prepare_options)
    return out / "scene"


def schedule(
    scene_dir: Path, *, pipeline: str, preset: str, batch: int, ranks: int, views: int, seed: int,
    cap: int | None = None, ordering: str = "greedy", balance: bool = False,
) -> tuple[Plan, Scene]:  # fmt: skip
    """The plan for a run with these options."""
    options = TrainOptions(
        scene_dir=str(scene_dir), plan="", pipeline=pipeline, preset=preset, batch=batch, ranks=ranks, views=views,
        seed=seed, cap=cap,
    )  # fmt: skip
    options.validate()
    scene = load_scene(scene_dir)
    budget = options.budget
    plan = make_plan(
        scene,
        scene_sha256=file_sha256(scene_dir / "scene.npz"),
        batch=batch,
        ranks=ranks,
        num_steps=budget.num_steps,
        seed=seed,
        structural_steps=get_pipeline(pipeline).structural_steps(options.resolve_preset(), budget),
        ordering=ordering,
        balance=balance,
    )
    return plan, scene


def train(options: TrainOptions, *, data: str, on_progress: Progress) -> RunDir:
    """Train into ``options.out``, going on from its last checkpoint; returns at once where it is complete."""
    run = RunDir(Path(options.out))
    job = load_job(options)
    if not run.begin(job, data=data):
        return run
    started = datetime.now(UTC)
    launch(run, options, num_steps=job.plan.num_steps, on_progress=on_progress)
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    record = provenance.collect(read_json(run.record), started_utc=started, ended_utc=datetime.now(UTC), command=command)
    provenance.write(run.path / "provenance.json", record, resumed=True)
    return run


def train_from_data(
    options: TrainOptions, *, data: str, balance: bool, on_progress: Progress, **prepare_options
) -> RunDir:
    """`train` on raw or prepared data: what is missing (scene, plan) is made inside ``options.out``."""
    out = Path(options.out)
    refuse_foreign_folder(out)
    scene_dir = scene_folder(data, out, **prepare_options)
    options = replace(options, scene_dir=str(scene_dir))
    if not options.plan:
        plan, _ = schedule(
            scene_dir, pipeline=options.pipeline, preset=options.preset, batch=options.batch, ranks=options.ranks,
            views=options.views, seed=options.seed, cap=options.cap, balance=balance,
        )  # fmt: skip
        options = replace(options, plan=str(out / "plan.odin"))
        if not (out / "run.json").exists():
            out.mkdir(parents=True, exist_ok=True)
            save_plan(plan, options.plan)
    return train(options, data=data, on_progress=on_progress)


def refuse_foreign_folder(out: Path) -> None:
    """Raises ValueError where `out` holds something that is not a run, before anything is written there."""
    known = {"run.json", "scene", "plan.odin"}
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; --out needs a folder.")
    if out.is_dir() and (names := {entry.name for entry in out.iterdir()}) and not names & known:
        raise ValueError(
            f"{out} is not empty and not a run of odin (it holds {sorted(names)[:3]}). Choose a new folder."
        )


def evaluate_run(
    run_dir: Path, *, lpips: LpipsWeights | None = None, save_renders: bool = False, device: str = "auto",
    on_view: Callable[[int, int], None] = lambda done, total: None,
) -> dict:  # fmt: skip
    """Score a finished run on the scene's test views; writes ``metrics.json``."""
    run = RunDir(run_dir)
    if not run.complete:
        raise ValueError(f"{run_dir} is not a finished run (no summary.json and model.ply). Train it first.")
    weights = load_lpips(lpips)
    options = run.load_options()
    record, summary = read_json(run.record), read_json(run.summary)
    scene = load_scene(Path(options.scene_dir))
    if file_sha256(Path(options.scene_dir) / "scene.npz") != record["scene_sha256"]:
        raise ValueError(f"{options.scene_dir} is not the scene that {run_dir} was trained on (other sha256).")
    names = test_names(scene)
    view_of = dict(zip(scene.names, range(scene.num_views), strict=True))
    renders = _renders(run, options, scene, device, on_view)

    def keep(name: str, image, target) -> None:
        save_render(run_dir / "renders", name, image)
        save_comparison(run_dir / "comparisons", name, image, target)

    evaluation = evaluate(
        renders,
        lambda name: load_image(scene, view_of[name]),
        names,
        lpips=weights,
        on_view=keep if save_renders else None,
    )
    metrics = metrics_record(
        evaluation,
        protocol=scene.protocol,
        lpips=weights,
        kind=summary["kind"],
        num_gs=summary["num_gs"],
        model_sha256=summary["model_sha256"],
    )
    write_json(run_dir / "metrics.json", metrics)
    return metrics


def _renders(run: RunDir, options: TrainOptions, scene: Scene, device: str, on_view) -> Iterator[tuple[str, object]]:
    factory, _ = select_renderer(device)
    import numpy as np

    render = ModelRenderer(
        get_pipeline(options.pipeline), options.resolve_preset(), options.budget, load_ply(run.model), factory(),
        np.asarray(scene.protocol.background, np.float32),
    )  # fmt: skip
    for done, view in enumerate(scene.test_views):
        yield scene.names[view], render(scene.camera(int(view)))
        on_view(done + 1, len(scene.test_views))


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactnessRun:
    mode: str
    ranks: int
    num_gs: int
    model_sha256: str
    train_s: float


def exactness(
    data: str, *, pipeline: str, preset: str, ranks: Sequence[int], batch: int, steps: int, seed: int, delay_s: float,
    modes: Sequence[str] = ("sync", "quality"), transport: str = "auto", out: Path | None = None,
) -> Iterator[ExactnessRun]:  # fmt: skip
    """Train the same plan in each mode and number of ranks; their model hashes must be equal.

    Random delays (exponential, mean `delay_s`) after each unit of each rank make every run's timing different.
    """
    with tempfile.TemporaryDirectory(prefix="odin-exactness-") as temporary:
        folder = out or Path(temporary)
        scene_dir = scene_folder(data, folder)
        plan, scene = schedule(
            scene_dir, pipeline=pipeline, preset=preset, batch=batch, ranks=max(ranks), views=steps * batch, seed=seed
        )
        for num_ranks in ranks:
            plan_path = folder / f"plan-{num_ranks}.odin"
            save_plan(with_ranks(plan, num_ranks, scene), plan_path)
            for mode in modes:
                options = TrainOptions(
                    scene_dir=str(scene_dir), plan=str(plan_path), pipeline=pipeline, preset=preset, mode=mode,
                    ranks=num_ranks, batch=batch, views=steps * batch, seed=seed, delay_s=delay_s, transport=transport,
                    out=str(folder / f"{mode}-{num_ranks}"), checkpoint_every=0,
                    pin=num_ranks <= (os.cpu_count() or 1),
                )  # fmt: skip
                run = train(options, data=data, on_progress=lambda step: None)
                summary = read_json(run.summary)
                yield ExactnessRun(
                    mode=mode,
                    ranks=num_ranks,
                    num_gs=summary["num_gs"],
                    model_sha256=summary["model_sha256"],
                    train_s=summary["train_s"],
                )
