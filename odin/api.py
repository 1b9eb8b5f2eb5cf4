"""The commands as functions: each takes plain values, does one thing and returns what it made.

The command line and the workflow call these; so can a notebook. Progress and what is skipped go to the logger
``odin.api`` and to the callbacks: nothing here prints.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from odin.data.jsonio import read_json, write_json
from odin.data.scene import Scene
from odin.data.scene_io import MANIFEST, load_image, load_scene
from odin.distributed.launch import launch
from odin.pipelines.protocol import get_pipeline
from odin.primitives.ply import load_ply
from odin.rendering.select import select_renderer
from odin.schedule.build import make_plan, with_ranks
from odin.schedule.plan import Plan
from odin.schedule.plan_io import save_plan
from odin.training.job import load_job
from odin.training.options import IDENTITY_OPTIONS, TrainOptions, file_sha256
from odin.training.render import ModelRenderer
from odin.training.run_dir import RunDir

if TYPE_CHECKING:  # imported where they are needed: they take a second, which training need not wait for
    from odin.evaluation.metrics import LpipsWeights

logger = logging.getLogger(__name__)

Progress = Callable[[int], None]


def no_progress(*done: object) -> None:
    """For callers that do not want to know how far a command is."""


def is_prepared(folder: Path) -> bool:
    """Whether `folder` is one that `odin prepare` made."""
    return (folder / MANIFEST).is_file()


def prepare(data: str, out: Path, **options: Any) -> Scene:
    """`odin.data.prepare.prepare`, with a warning where the result cannot be evaluated."""
    from odin.data.prepare import prepare as prepare_data

    scene = prepare_data(data, out, **options)
    warn_small_images(scene)
    return scene


def scene_folder(data: str, out: Path, **raw: Any) -> Path:
    """The prepared scene for `data`: itself where it is one, else prepared into ``out/scene``.

    raw: options of `odin.data.prepare.prepare`. Raises ValueError where there are any and `data` is prepared already.
    """
    if not is_prepared(Path(data)):
        prepare(data, out / "scene", **raw)
        return out / "scene"
    if raw:
        raise ValueError(
            f"{data} is prepared already, which settled {', '.join(sorted(raw))}. Leave that out, or give the original "
            "data."
        )
    return Path(data)


def warn_small_images(scene: Scene) -> None:
    """Log a warning where a test view is too small for SSIM: better before the training than after it."""
    from odin.evaluation.metrics import MIN_SSIM_SIZE_PX

    views = scene.test_views
    smallest = min(
        scene.widths[views].min(initial=MIN_SSIM_SIZE_PX), scene.heights[views].min(initial=MIN_SSIM_SIZE_PX)
    )
    if smallest < MIN_SSIM_SIZE_PX:
        logger.warning(
            "%s: a test view is %d pixels wide or high, and SSIM needs %d: a model of it can be trained, but not "
            "evaluated. Prepare the scene with a smaller factor.",
            scene.name,
            smallest,
            MIN_SSIM_SIZE_PX,
        )


def schedule(
    scene_dir: Path, *, pipeline: str, preset: str, batch: int, ranks: int, views: int, seed: int,
    cap: int | None = None, ordering: str = "greedy", balance: bool = False,
) -> tuple[Plan, Scene]:  # fmt: skip
    """The plan for a run with these options, and the scene it is for."""
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


def train(options: TrainOptions, *, data: str, on_progress: Progress = no_progress) -> RunDir:
    """Train into ``options.out``, going on from its last checkpoint; returns at once where it is complete.

    Raises ValueError where options, plan, scene and folder do not fit together, TrainingFailed where a rank fails.
    """
    run = RunDir(Path(options.out))
    job = load_job(options)
    if options.device == "cuda":
        select_renderer("cuda")  # refuses here, before the folder becomes that of a run
    if not run.begin(job, data=data):
        logger.info("%s: trained already, nothing to do", run.path)
        return run
    warn_small_images(job.scene)
    started = datetime.now(UTC)
    launch(run, options, num_steps=job.plan.num_steps, on_progress=on_progress)

    from odin.report import provenance

    record = provenance.collect(
        read_json(run.record), started_utc=started, ended_utc=datetime.now(UTC), command=_command_words()
    )
    provenance.write(run.path / "provenance.json", record, resumed=True)
    return run


def _command_words() -> list[str]:
    """How this process was started, for the record: ``python -m odin`` and ``odin`` are the same command."""
    name = Path(sys.argv[0]).name
    return ["odin" if name == "__main__.py" else name, *sys.argv[1:]]


def train_from_data(
    options: TrainOptions, *, data: str, balance: bool = False, on_progress: Progress = no_progress, **raw: Any
) -> RunDir:
    """`train` on raw or prepared data: what is missing (scene, plan) is made inside ``options.out``.

    options: its `scene_dir` is not used; an empty `plan` asks for one with `balance`.
    raw: see `scene_folder`.
    """
    options.validate()
    out = Path(options.out)
    if options.plan and balance:
        raise ValueError(f"balance is a matter of the plan, and {options.plan} is given. Make it with balance instead.")
    refuse_other_content(out, options, balance)
    scene_dir = scene_folder(data, out, **raw)
    options = replace(options, scene_dir=str(scene_dir))
    if not options.plan:
        options = replace(options, plan=str(out / "plan.odin"))
        # a plan without a record of the run is what a start left behind that was given up
        if not ((out / "run.json").exists() and (out / "plan.odin").exists()):
            plan, _ = schedule(
                scene_dir, pipeline=options.pipeline, preset=options.preset, batch=options.batch, ranks=options.ranks,
                views=options.views, seed=options.seed, cap=options.cap, balance=balance,
            )  # fmt: skip
            save_plan(plan, options.plan)
    return train(options, data=data, on_progress=on_progress)


def refuse_other_content(out: Path, options: TrainOptions, balance: bool = False) -> None:
    """Raises ValueError where `out` holds another run, or no run at all, before anything is written there."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; a run needs a folder.")
    names = {entry.name for entry in out.iterdir()} if out.is_dir() else set()
    if names and not names & {"run.json", "scene", "plan.odin"}:
        raise ValueError(
            f"{out} is not empty and not a run of odin (it holds {', '.join(sorted(names)[:3])}). Choose a new folder."
        )
    if "run.json" not in names:
        return
    before = read_json(out / "run.json")
    before |= before.get("preset_values", {})
    preset = asdict(options.resolve_preset())
    asked = {name: getattr(options, name) for name in IDENTITY_OPTIONS} | preset | {"preset": preset["name"]}
    del asked["name"]
    if not options.plan:
        asked["balance"] = balance
    differing = [
        f"{name} ({before.get(name)} there, {value} here)" for name, value in asked.items() if before.get(name) != value
    ]
    if differing:
        raise ValueError(
            f"{out} holds another run: {', '.join(differing)}. Train into a new folder, or delete this one yourself."
        )


def evaluate_run(
    run_dir: Path, *, lpips: LpipsWeights | None = None, save_renders: bool = False, device: str = "auto",
    scene_dir: Path | None = None, on_view: Callable[[int, int], None] = no_progress,
) -> dict[str, Any]:  # fmt: skip
    """Score a finished run on the scene's test views; writes ``metrics.json`` and returns its content.

    scene_dir: the prepared scene, where it is no longer at the place that the run knows.
    on_view: called with the number of views done and of all.

    Raises ValueError where the run is not finished, the scene is gone or another one, or the weights are not right.
    """
    from odin.evaluation.metrics import load_lpips
    from odin.evaluation.pictures import save_comparison, save_render
    from odin.evaluation.protocol import evaluate, metrics_record, test_names

    run = finished_run(run_dir)
    weights = load_lpips(lpips)
    if lpips is not None and weights.distance is None:
        logger.warning("%s: LPIPS will be n/a", weights.reason)
    options = run.load_options()
    summary = read_json(run.summary)
    scene = load_scene(find_scene(run, options, scene_dir))
    names = test_names(scene)
    view_of = dict(zip(scene.names, range(scene.num_views), strict=True))

    def keep(name: str, image: np.ndarray, target: np.ndarray) -> None:
        save_render(run_dir / "renders", name, image)
        save_comparison(run_dir / "comparisons", name, image, target)

    evaluation = evaluate(
        _renders(run, options, scene, device, on_view),
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


def finished_run(run_dir: Path) -> RunDir:
    """The run in a folder. Raises ValueError where there is none, or where it is not finished."""
    run = RunDir(run_dir)
    if run.complete and run.record.exists():
        return run
    if not run_dir.is_dir():
        raise ValueError(f"{run_dir}: no such folder. Give the folder of a run (--out of `odin train`).")
    if run.record.exists():
        raise ValueError(f"{run_dir}: this run is not finished. The same `odin train` command goes on with it.")
    raise ValueError(f"{run_dir}: no run in there (no run.json). Give the folder of a run (--out of `odin train`).")


def find_scene(run: RunDir, options: TrainOptions, scene_dir: Path | None = None) -> Path:
    """Folder of the scene a run was trained on: as given, where the run says, or inside the run."""
    places = [scene_dir] if scene_dir else [Path(options.scene_dir), run.path / "scene"]
    found = next((place for place in places if is_prepared(place)), None)
    if found is None and scene_dir is not None:
        raise ValueError(f"{scene_dir}: no prepared scene in there (no {MANIFEST}).")
    if found is None:
        listed = " nor ".join(map(str, dict.fromkeys(places)))
        raise ValueError(f"{run.path}: its scene is not at {listed}. Name its folder (scene).")
    expected = read_json(run.record)["scene_sha256"]
    if file_sha256(found / "scene.npz") != expected:
        raise ValueError(
            f"{found} is not the scene that {run.path} was trained on (sha256 {expected[:12]}). Name that one's folder "
            "(scene), or train again."
        )
    return found


def _renders(
    run: RunDir, options: TrainOptions, scene: Scene, device: str, on_view: Callable[[int, int], None]
) -> Iterator[tuple[str, np.ndarray]]:
    factory, _ = select_renderer(device)
    render = ModelRenderer(
        get_pipeline(options.pipeline), options.resolve_preset(), options.budget, load_ply(run.model), factory(),
        np.asarray(scene.protocol.background, np.float32),
    )  # fmt: skip
    for done, view in enumerate(scene.test_views, start=1):
        yield scene.names[view], render(scene.camera(int(view)))
        on_view(done, len(scene.test_views))


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactnessRun:
    """One of the runs whose models must be equal."""

    mode: str
    ranks: int
    num_gs: int
    model_sha256: str
    train_s: float
    num_structural: int  # structural changes on the way


def exactness(
    data: str, *, pipeline: str, preset: str, ranks: Sequence[int], batch: int, steps: int, seed: int,
    delay_s: float = 0.0, modes: Sequence[str] = ("sync", "quality"), transport: str = "auto", out: Path | None = None,
    on_progress: Callable[[str, int], None] = no_progress, **raw: Any,
) -> Iterator[ExactnessRun]:  # fmt: skip
    """Train the same plan in each mode and number of ranks; their model hashes must be equal.

    Random delays (exponential, mean `delay_s`) after each unit of each rank make every run's timing different.
    ranks: one that is named twice is done once.
    out: where the runs are kept, so that a second call goes on from them; by default they are deleted.
    on_progress: called with the run's name and the step it is in.
    raw: see `scene_folder`.
    """
    numbers = list(dict.fromkeys(ranks))
    if not numbers:
        raise ValueError("no number of ranks given; give at least one.")
    if steps < 1:
        raise ValueError(f"steps is {steps}; it must be at least 1.")
    common = TrainOptions(
        scene_dir="", plan="", pipeline=pipeline, preset=preset, batch=batch, views=steps * batch, seed=seed,
        delay_s=delay_s, transport=transport, checkpoint_every=0,
    )  # fmt: skip
    wanted = [replace(common, mode=mode, ranks=number) for number in numbers for mode in modes]
    for options in wanted:
        options.validate()
    with tempfile.TemporaryDirectory(prefix="odin-exactness-") as temporary:
        folder = out or Path(temporary)
        wanted = [replace(options, out=str(folder / f"{options.mode}-{options.ranks}")) for options in wanted]
        for options in wanted:
            refuse_other_content(Path(options.out), options)
        scene_dir = scene_folder(data, folder, **raw)
        plan, scene = schedule(
            scene_dir, pipeline=pipeline, preset=preset, batch=batch, ranks=max(numbers), views=steps * batch, seed=seed
        )
        for options in wanted:
            path = folder / f"plan-{options.ranks}.odin"
            save_plan(with_ranks(plan, options.ranks, scene), path)
            run = train(
                replace(options, scene_dir=str(scene_dir), plan=str(path)),
                data=data,
                on_progress=partial(on_progress, f"{options.mode}, {options.ranks} rank{'s' * (options.ranks > 1)}"),
            )
            summary = read_json(run.summary)
            yield ExactnessRun(
                mode=options.mode,
                ranks=options.ranks,
                num_gs=summary["num_gs"],
                model_sha256=summary["model_sha256"],
                train_s=summary["train_s"],
                num_structural=len(plan.structural_steps),
            )
