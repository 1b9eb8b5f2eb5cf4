"""The commands: parse, call one function of `odin.api`, print.

Results go to stdout; progress, notes and errors to stderr. Everything but the parser is imported where it is used, so
that help and refusals come at once.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.extras import SubcommandApp

from odin.cli.terminal import Progress, silently

app = SubcommandApp()

Transport = Literal["auto", "shared-memory", "gloo"]
Device = Literal["auto", "cpu", "cuda"]
_FIGURE_SUFFIXES = (".png", ".pdf", ".svg")


@dataclass(frozen=True, kw_only=True, slots=True)
class RawData:
    """How raw data becomes a scene; for a scene that is prepared already, all this is decided."""

    factor: float | None = None  # divide the images' size by this (the data set's own images_F folder first)
    images: str | None = None  # another image folder
    model: str | None = None  # another COLMAP model, such as sparse/1
    width: int | None = None  # image width of a gallery scene, pixels
    num_views: int | None = None  # number of views of a gallery scene
    test_every: int = 8  # every how-manyeth view, by name, is a test view
    background: tuple[float, float, float] = (0.0, 0.0, 0.0)  # colour under transparent pixels, 0 to 1
    skip_missing: bool = False  # leave out frames without a file; recorded in the manifest
    name: str | None = None  # the scene's name in tables; by default that of the data folder

    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """How a run is done. None of this decides the model: it may change when a killed run goes on."""

    transport: Transport = "auto"  # how ranks exchange row gradients
    device: Device = "auto"  # where to render
    timeout_s: float = 120.0  # longest wait for a peer before the job ends with an error, seconds
    checkpoint_every: int = 250  # steps between checkpoints, 0 for none
    delay_s: float = 0.0  # mean of random delays after each unit, seconds, to test that timing does not matter
    pin: bool = True  # keep each rank on a core of its own, where there are enough


@app.command(name="prepare")
def prepare_command(*, data: str, out: Path, seed: int = 0, raw: RawData = RawData()) -> None:
    """Turn a COLMAP folder, a transforms.json or gallery:NAME into a prepared scene.

    Args:
        data: COLMAP folder, transforms.json (or its folder), gallery:orbit, gallery:rooms or gallery:blocks.
        out: folder of the prepared scene.
        seed: of the gallery and of points drawn where a scene has none.
    """
    from odin import api

    scene = api.prepare(data, out, seed=seed, **raw.given())
    print(
        f"{out}: {scene.num_views} views ({len(scene.test_views)} test), {_counted(len(scene.points), 'point')}, "
        f"{_sizes(scene.widths, scene.heights)} px"
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _need_runs(runs: tuple[Path, ...]) -> None:
    if not runs:
        raise ValueError("no run given; name at least one run folder.")


def _sizes(widths: Any, heights: Any) -> str:
    """Image size, or the smallest and the largest one."""
    sizes = sorted(set(zip(widths.tolist(), heights.tolist(), strict=True)), key=lambda size: size[0] * size[1])
    return " to ".join(f"{width}x{height}" for width, height in dict.fromkeys((sizes[0], sizes[-1])))


@app.command(name="schedule")
def schedule_command(
    *,
    data: Path,
    out: Path,
    pipeline: str = "3dgs",
    preset: str = "small",
    batch: int = 4,
    ranks: int = 2,
    views: int = 2000,
    seed: int = 0,
    cap: int | None = None,
    ordering: Literal["greedy", "random"] = "greedy",
    balance: bool = False,
    figure: Path | None = None,
    explain: bool = False,
) -> None:
    """Decide ahead of time which views make a step, on which rank, and which steps may overlap.

    Args:
        data: a prepared scene.
        out: the plan file.
        pipeline: method to plan for; decides the structural steps.
        preset: its constants.
        batch: views of a step.
        ranks: processes the steps are spread over; the batches do not depend on it.
        views: training budget in views seen.
        seed: of the epochs' permutations.
        cap: largest number of primitives, instead of the preset's.
        ordering: greedy (little conflict between neighbouring steps) or random.
        balance: choose ranks by predicted cost instead of by position in the batch.
        figure: also draw the view graph and the conflicts (PNG).
        explain: print what the plan is expected to do.
    """
    from odin import api
    from odin.schedule.explain import explain as explain_plan
    from odin.schedule.plan_io import save_plan

    if out.is_dir():
        raise ValueError(f"--out is {out}, a folder; it must be the name of a file, such as {out / 'plan.odin'}.")
    if figure is not None and figure.suffix not in _FIGURE_SUFFIXES:
        raise ValueError(f"--figure is {figure}; its suffix must be one of {', '.join(_FIGURE_SUFFIXES)}.")
    plan, scene = api.schedule(
        data, pipeline=pipeline, preset=preset, batch=batch, ranks=ranks, views=views, seed=seed, cap=cap,
        ordering=ordering, balance=balance,
    )  # fmt: skip
    save_plan(plan, out)
    print(f"{out}: {plan.num_steps} steps of {plan.batch} views on {plan.ranks} ranks, {len(plan.windows)} windows")
    if explain:
        print(explain_plan(plan, scene))
    if figure is not None:
        from odin.schedule.figures import draw_plan

        draw_plan(plan, scene, figure)
        print(figure)


@app.command(name="train")
def train_command(
    *,
    data: str,
    out: Path,
    pipeline: str = "3dgs",
    preset: str = "small",
    mode: Literal["ddp", "sync", "quality"] = "quality",
    ranks: int = 1,
    batch: int = 4,
    views: int = 2000,
    seed: int = 0,
    cap: int | None = None,
    plan: Path | None = None,
    balance: bool = False,
    operation: Operation = Operation(),
    raw: RawData = RawData(),
) -> None:
    """Train a scene. The same command goes on from the last checkpoint of a run that was stopped.

    Args:
        data: a prepared scene, COLMAP folder, transforms.json or gallery:NAME.
        out: run folder. Never overwritten by another run.
        pipeline: method.
        preset: its constants ("paper" or "small").
        mode: ddp (all-reduce), sync (reference, barrier) or quality (overlapping, same bits as sync).
        ranks: processes.
        batch: views of a step; does not depend on the ranks.
        views: training budget in views seen; steps = views / batch, rounded up.
        seed: of everything random in training.
        cap: largest number of primitives, instead of the preset's.
        plan: a plan made by `odin schedule` for the same options; by default one is made.
        balance: choose ranks by predicted cost (without --plan).
    """
    from odin import api
    from odin.data.jsonio import read_json
    from odin.training.options import TrainOptions

    options = TrainOptions(
        scene_dir="", plan=str(plan or ""), pipeline=pipeline, preset=preset, mode=mode, ranks=ranks, batch=batch,
        views=views, seed=seed, cap=cap, out=str(out), transport=operation.transport, device=operation.device,
        timeout_s=operation.timeout_s, checkpoint_every=operation.checkpoint_every, delay_s=operation.delay_s,
        pin=operation.pin,
    )  # fmt: skip
    options.validate()
    with Progress("step", options.budget.num_steps) as progress:
        run = api.train_from_data(options, data=data, balance=balance, on_progress=progress, **raw.given())
    summary = read_json(run.summary)
    waiting = sum(summary["wait_share"]) / len(summary["wait_share"])
    print(
        f"{run.model}: {_counted(summary['num_gs'], 'primitive')}, {summary['steps']} steps in "
        f"{summary['train_s']:.1f} s ({summary['samples_per_s']:.1f} samples/s, {waiting:.1%} waiting), "
        f"model {summary['model_sha256'][:16]}"
    )


@app.command(name="evaluate")
def evaluate_command(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    *,
    scene: Path | None = None,
    lpips_weights: Path | None = None,
    lpips_sha256: str | None = None,
    lpips_net: Literal["vgg", "alex"] = "vgg",
    save_renders: bool = False,
    device: Device = "auto",
) -> None:
    """Score finished runs on their test views; writes metrics.json into each.

    Args:
        runs: run folders.
        scene: the prepared scene, where it is not at the place that the run knows any more.
        lpips_weights: TorchScript file with the LPIPS network; without it LPIPS is null, with the reason.
        lpips_sha256: its hash.
        lpips_net: which network the file holds.
        save_renders: keep renders and comparisons (target, render, error) as PNG.
        device: where to render.
    """
    from odin import api
    from odin.evaluation.metrics import LpipsWeights

    _need_runs(runs)
    if (lpips_weights is None) != (lpips_sha256 is None):
        raise ValueError("--lpips-weights and --lpips-sha256 belong together: give both or neither.")
    weights = None
    if lpips_weights is not None and lpips_sha256 is not None:
        weights = LpipsWeights(path=lpips_weights, sha256=lpips_sha256, net=lpips_net, version="0.1")
    for run in runs:
        api.finished_run(run)
    for run in runs:
        with Progress("view") as progress:
            metrics = api.evaluate_run(
                run, lpips=weights, save_renders=save_renders, device=device, scene_dir=scene, on_view=progress
            )
        mean = metrics["mean"]
        lpips = f"{mean['lpips']:.4f}" if mean["lpips"] is not None else f"n/a ({metrics['lpips_reason']})"
        print(
            f"{run}: PSNR {mean['psnr']:.2f} dB, SSIM {mean['ssim']:.4f}, LPIPS {lpips}, mean of "
            f"{_counted(mean['num_views'], 'test view')}, {_counted(metrics['num_gs'], 'primitive')}"
        )


@app.command(name="exactness")
def exactness_command(
    *,
    data: str,
    pipeline: str = "3dgs",
    preset: str = "small",
    ranks: str = "1,2",
    batch: int = 4,
    steps: int = 200,
    seed: int = 0,
    delay_s: float = 0.002,
    transport: Transport = "auto",
    out: Path | None = None,
    raw: RawData = RawData(),
) -> None:
    """Train one plan in modes sync and quality, on several numbers of ranks and with random delays: all models must be
    equal to the bit, else the exit code is 1.

    Args:
        data: a prepared scene, COLMAP folder, transforms.json or gallery:NAME.
        pipeline: method.
        preset: its constants.
        ranks: numbers of ranks, separated by commas.
        batch: views of a step.
        steps: optimizer steps.
        seed: of everything random but the delays.
        delay_s: mean of the random delay after each unit, seconds.
        transport: how ranks exchange row gradients.
        out: keep the runs here (else they are deleted).
    """
    from odin import api

    numbers = _rank_numbers(ranks)
    results = []
    with Progress("step", steps) as progress:
        runs = api.exactness(
            data, pipeline=pipeline, preset=preset, ranks=numbers, batch=batch, steps=steps, seed=seed, delay_s=delay_s,
            transport=transport, out=out, on_progress=progress.named, **raw.given(),
        )  # fmt: skip
        for result in silently(runs):
            results.append(result)
            print(
                f"mode={result.mode:8s} ranks={result.ranks:<3d} num_gs={result.num_gs} train_s={result.train_s:.2f} "
                f"model={result.model_sha256[:16]}",
                flush=True,
            )
    models = {result.model_sha256 for result in results}
    changes = results[0].num_structural
    if len(models) != 1:
        print(f"NOT exact: {len(results)} runs gave {len(models)} different models", file=sys.stderr)
        raise SystemExit(1)
    print(
        f"exact: all {len(results)} models are equal to the bit, {changes} structural changes included: {models.pop()}"
    )
    if not changes:
        logging.getLogger("odin").warning("no structural change fell into %d steps; more steps check more", steps)


def _rank_numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ValueError(f"--ranks is {text!r}; allowed: whole numbers separated by commas, e.g. 1,2,4.") from None


@app.command(name="tables")
def tables_command(*, runs: tuple[Path, ...], out: Path, print_tables: bool = True) -> None:
    """Tables of quality and throughput from finished runs, as Markdown and CSV.

    Args:
        runs: run folders (with metrics.json), or folders that hold such.
        out: folder for quality.{md,csv} and throughput.{md,csv}.
        print_tables: also print the Markdown.
    """
    from odin.report.tables import write_tables

    _need_runs(runs)
    for path in write_tables(runs, out):
        if print_tables and path.suffix == ".md":
            print(path.read_text())


@app.command(name="figures")
def figures_command(*, runs: tuple[Path, ...], out: Path) -> None:
    """Figures from finished runs: throughput, quality, time split, Gantt.

    Args:
        runs: run folders, or folders that hold such.
        out: folder for the PNG files.
    """
    from odin.report.figures import write_figures

    _need_runs(runs)
    for path in write_figures(runs, out):
        print(path)
