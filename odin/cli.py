"""The `odin` command: parse, call one function of `odin.api`, print.

odin train --data gallery:rooms --mode quality --ranks 2 --out runs/rooms
odin evaluate runs/rooms
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.extras import SubcommandApp

app = SubcommandApp()
_PROGRESS_LINES = 10  # where the output is no terminal


@app.command(name="prepare")
def prepare_command(
    *,
    data: str,
    out: Path,
    factor: float | None = None,
    images: str | None = None,
    model: str | None = None,
    width: int | None = None,
    num_views: int | None = None,
    test_every: int = 8,
    background: tuple[float, float, float] = (0.0, 0.0, 0.0),
    skip_missing: bool = False,
    seed: int = 0,
    name: str | None = None,
) -> None:
    """Turn a COLMAP folder, a transforms.json or gallery:NAME into a prepared scene.

    Args:
        data: COLMAP folder, transforms.json (or its folder), gallery:orbit, gallery:rooms or gallery:blocks.
        out: folder of the prepared scene.
        factor: divide the images' size by this (the data set's own images_F folder first).
        images: another image folder.
        model: another COLMAP model, e.g. sparse/1.
        width: image width of a gallery scene, pixels.
        num_views: number of views of a gallery scene.
        test_every: every how-manyeth view (by name) is a test view.
        background: colour under transparent pixels, 0 to 1.
        skip_missing: leave out frames without a file; recorded in the manifest.
        seed: of the gallery and of points drawn where a scene has none.
        name: the scene's name in tables; by default that of the data folder.
    """
    from odin.data.prepare import prepare

    scene = prepare(
        data, out, factor=factor, images=images, model=model, width=width, num_views=num_views, test_every=test_every,
        background=background, skip_missing=skip_missing, seed=seed, name=name,
    )  # fmt: skip
    print(
        f"{out}: {scene.num_views} views ({len(scene.test_views)} test), {len(scene.points)} points, "
        f"{scene.widths.max()}x{scene.heights.max()} px"
    )


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
    from odin.schedule.build import explain as explain_plan
    from odin.schedule.plan_io import save_plan

    plan, scene = api.schedule(
        data, pipeline=pipeline, preset=preset, batch=batch, ranks=ranks, views=views, seed=seed, cap=cap,
        ordering=ordering, balance=balance,
    )  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    save_plan(plan, out)
    print(f"{out}: {plan.num_steps} steps of {plan.batch} views on {plan.ranks} ranks, {len(plan.windows)} windows")
    if explain:
        print(explain_plan(plan, scene))
    if figure is not None:
        from odin.schedule.figures import draw_plan

        draw_plan(plan, scene, figure)


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
    balance: bool = False,
    plan: Path | None = None,
    factor: float | None = None,
    width: int | None = None,
    num_views: int | None = None,
    transport: Literal["auto", "shared-memory", "gloo"] = "auto",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    timeout_s: float = 120.0,
    checkpoint_every: int = 250,
    delay_s: float = 0.0,
    pin: bool = True,
) -> None:
    """Train a scene; the same command goes on from the last checkpoint of a killed run.

    Args:
        data: a prepared scene, COLMAP folder, transforms.json or gallery:NAME.
        out: run folder. Never overwritten by another run.
        pipeline: method.
        preset: its constants ("paper" or "small").
        mode: ddp (all-reduce), sync (reference, barrier) or quality (overlapping, same bits as sync).
        ranks: processes.
        batch: views of a step; does not depend on the ranks.
        views: training budget in views seen; steps = views / batch, rounded up.
        seed: of everything random.
        cap: largest number of primitives, instead of the preset's.
        balance: cost-balanced ranks (without --plan).
        plan: a plan made by `odin schedule` for the same options.
        factor: divide the images' size by this (raw data only).
        width: image width, pixels (gallery only).
        num_views: number of views (gallery only).
        transport: how ranks exchange row gradients.
        device: where to render.
        timeout_s: longest wait for a peer before the job ends with an error, seconds.
        checkpoint_every: steps between checkpoints, 0 for none.
        delay_s: mean of random delays after each unit, seconds, to test that timing does not matter.
        pin: one core a rank.
    """
    from odin import api
    from odin.data.jsonio import read_json
    from odin.training.options import TrainOptions

    options = TrainOptions(
        scene_dir="", plan=str(plan or ""), pipeline=pipeline, preset=preset, mode=mode, ranks=ranks, batch=batch,
        views=views, seed=seed, cap=cap, out=str(out), transport=transport, device=device, timeout_s=timeout_s,
        checkpoint_every=checkpoint_every, delay_s=delay_s, pin=pin,
    )  # fmt: skip
    options.validate()
    raw = {"factor": factor, "width": width, "num_views": num_views}
    with _Progress(options.budget.num_steps) as progress:
        run = api.train_from_data(
            options,
            data=data,
            balance=balance,
            on_progress=progress,
            **{name: value for name, value in raw.items() if value is not None},
        )
    summary = read_json(run.summary)
    print(
        f"{out}: {summary['num_gs']} primitives, {summary['samples_per_s']:.1f} samples/s, "
        f"train {summary['train_s']:.1f} s, model {summary['model_sha256'][:16]}"
    )


@app.command(name="evaluate")
def evaluate_command(
    run: Annotated[Path, tyro.conf.Positional],
    *,
    lpips_weights: Path | None = None,
    lpips_sha256: str | None = None,
    lpips_net: Literal["vgg", "alex"] = "vgg",
    save_renders: bool = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """Score a finished run on its test views.

    Args:
        run: run folder.
        lpips_weights: TorchScript file with the LPIPS network; without it LPIPS is null, with the reason.
        lpips_sha256: its hash.
        lpips_net: which network the file holds.
        save_renders: keep renders and comparisons as PNG.
        device: where to render.
    """
    from odin import api
    from odin.evaluation.metrics import LpipsWeights

    if (lpips_weights is None) != (lpips_sha256 is None):
        raise ValueError("--lpips-weights and --lpips-sha256 belong together: give both or neither.")
    weights = None
    if lpips_weights is not None:
        weights = LpipsWeights(path=lpips_weights, sha256=lpips_sha256, net=lpips_net, version="0.1")
    metrics = api.evaluate_run(run, lpips=weights, save_renders=save_renders, device=device)
    mean = metrics["mean"]
    lpips = f"{mean['lpips']:.4f}" if mean["lpips"] is not None else f"n/a ({metrics['lpips_reason']})"
    print(
        f"{run}: PSNR {mean['psnr']:.2f} dB, SSIM {mean['ssim']:.4f}, LPIPS {lpips}, mean of {mean['num_views']} test "
        f"views, {metrics['num_gs']} primitives"
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
    transport: Literal["auto", "shared-memory", "gloo"] = "auto",
    out: Path | None = None,
) -> None:
    """Train the same plan in modes sync and quality on several numbers of ranks, and compare the models' hashes.

    Exits with 0 only where all are equal. Densification runs, and random delays are injected into every rank.

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

    try:
        numbers = [int(number) for number in ranks.split(",")]
    except ValueError:
        raise ValueError(f"--ranks is {ranks!r}; allowed: whole numbers separated by commas, e.g. 1,2,4.") from None
    hashes = set()
    for result in api.exactness(
        data, pipeline=pipeline, preset=preset, ranks=numbers, batch=batch, steps=steps, seed=seed, delay_s=delay_s,
        transport=transport, out=out,
    ):  # fmt: skip
        hashes.add(result.model_sha256)
        values = asdict(result)
        print(
            " ".join(
                f"{key}={value:.3f}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items()
            ),
            flush=True,
        )
    if len(hashes) != 1:
        print(f"NOT exact: {len(hashes)} different models", file=sys.stderr)
        raise SystemExit(1)
    print("exact: all models are equal to the bit")


@app.command(name="tables")
def tables_command(*, runs: tuple[Path, ...], out: Path, print_tables: bool = True) -> None:
    """Tables of quality and throughput from finished runs, as Markdown and CSV.

    Args:
        runs: run folders (with metrics.json).
        out: folder for quality.{md,csv} and throughput.{md,csv}.
        print_tables: also print the Markdown.
    """
    from odin.report.tables import write_tables

    for path in write_tables(runs, out):
        if print_tables and path.suffix == ".md":
            print(path.read_text())


@app.command(name="figures")
def figures_command(*, runs: tuple[Path, ...], out: Path) -> None:
    """Figures from finished runs: throughput, quality, time split, Gantt.

    Args:
        runs: run folders.
        out: folder for the PNG files.
    """
    from odin.report.figures import write_figures

    for path in write_figures(runs, out):
        print(path)


class _Progress:
    """A bar on a terminal, else a line every tenth of the way; on stderr."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._bar = None
        self._printed = 0

    def __enter__(self) -> _Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"), TimeRemainingColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task("", total=self._num_steps)
        return self

    def __call__(self, step: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=step)
        elif (tenth := step * _PROGRESS_LINES // self._num_steps) > self._printed:
            self._printed = tenth
            print(f"step {step} of {self._num_steps}", file=sys.stderr, flush=True)

    def __exit__(self, *exception) -> None:
        if self._bar is not None:
            self._bar.stop()


def main() -> None:
    """Entry point. What a user can mend is printed as one line, without a traceback."""
    try:
        app.cli(prog="odin", description=__doc__, config=(tyro.conf.OmitArgPrefixes,))
    except (ValueError, FileNotFoundError, RuntimeError) as error:
        print(f"odin: error: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
