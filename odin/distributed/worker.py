"""One rank of a training run. Started by `odin.distributed.launch`, or by torchrun for several hosts:

torchrun --nproc-per-node 2 -m odin.distributed.worker RUN_DIR
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import torch

from odin.data.jsonio import write_json
from odin.data.scene_io import load_image
from odin.distributed.ddp import DdpRank
from odin.distributed.group import Group, join_group
from odin.distributed.replicated import ReplicatedRank
from odin.primitives.checkpoint import Checkpoint, newest_checkpoint, save_checkpoint
from odin.primitives.primitive_set import PrimitiveSet
from odin.primitives.row_update import advance_idle
from odin.rendering.interface import Renderer
from odin.rendering.select import select_renderer
from odin.training.job import Job, load_job
from odin.training.run_dir import RunDir
from odin.training.spans import SpanLog
from odin.training.targets import TargetStore
from odin.training.unit import UnitRunner


class Trainer:
    """The life of a run on one rank: start or resume, segments, structural changes, checkpoints, result."""

    def __init__(self, job: Job, run: RunDir, group: Group) -> None:
        self.job, self.run, self.group = job, run, group
        self.spans = SpanLog(run.spans / f"rank{group.rank}.jsonl")
        self.progress = run.map_progress(group.world)
        self.step = 0
        self.resumed_from: int | None = None
        self.train_s = self.earlier_wall_s = 0.0
        self.started = time.perf_counter()
        factory, reason = select_renderer(job.options.device)
        if group.rank == 0:
            print(f"renderer: {reason}", flush=True)
        self.renderer: Renderer = factory()
        self.targets = TargetStore(lambda view: load_image(job.scene, view), self.renderer.prepare_target)
        self.primitives = self._start()
        self.driver = self._driver()

    def train(self) -> None:
        self._warm_up()
        self.targets.preload(self._own_views())
        self.group.barrier("before the first step")
        gc.collect()
        gc.disable()  # a collection in the middle of a step would look like waiting to the others
        for first, last in self.job.segments(self.step):
            start = time.perf_counter()
            self.driver.run_segment(first, last)
            self.step = last
            if last in self.job.restructuring:
                self._restructure(last)
            self.train_s += time.perf_counter() - start
            self.spans.flush()
            self._checkpoint(last)
            gc.collect()
        self.primitives.check_finite(self.step)

    @property
    def wall_s(self) -> float:
        """Since this rank began to load the run, and up to the checkpoint it resumed from; never paused."""
        return self.earlier_wall_s + time.perf_counter() - self.started

    @property
    def wait_s(self) -> float:
        return self.spans.totals_s.get("wait", 0.0)

    def _start(self) -> PrimitiveSet:
        """The last checkpoint where there is one, else the initial primitives; the same on every rank."""
        found = newest_checkpoint(self.run.checkpoints)
        steps = self.group.gather(found.step if found else 0)
        if len(set(steps)) != 1:
            raise RuntimeError(
                f"ranks found different checkpoints (steps {steps}); is {self.run.path} on a shared disk?"
            )
        self.spans.keep_until(found.step if found else 0)
        if found is None:
            return self.job.pipeline.initialize(self.job.scene, self.job.preset, self.job.options.seed)
        if found.identity != self.job.identity:
            raise ValueError(f"{self.run.checkpoints}: the checkpoint belongs to another run. Train into a new folder.")
        self.step = self.resumed_from = found.step
        self.train_s, self.earlier_wall_s = float(found.meters["train_s"]), float(found.meters["wall_s"])
        if self.group.rank == 0:
            print(f"resuming after step {found.step} with {len(found.primitives)} primitives", flush=True)
        return found.primitives

    def _driver(self) -> DdpRank | ReplicatedRank:
        job = self.job
        if job.options.mode == "ddp":
            return DdpRank(job, self.group, self.primitives, self.renderer, self.targets, self.spans, self._on_step)
        runner = UnitRunner(job.pipeline, job.preset, self.renderer, job.background)
        return ReplicatedRank(job, self.group, self.primitives, runner, self.targets, self.spans, self._on_step)

    def _on_step(self, step: int) -> None:
        self.progress[self.group.rank] = step

    def _own_views(self) -> np.ndarray:
        return np.unique(self.job.plan.views[self.job.plan.rank_of == self.group.rank])

    def _warm_up(self) -> None:
        """Compile every kernel on a copy, so that no compilation falls into the measured time."""
        p = self.primitives
        few = p.take(np.arange(min(len(p), 64)))
        few.version[:] = 0
        advance_idle(few, 1, self.job.table)
        runner = UnitRunner(self.job.pipeline, self.job.preset, self.renderer, self.job.background)
        view = int(self.job.plan.views[0, 0])
        everything = np.arange(len(p), dtype=np.int32)
        for settings_step in (1, self.job.plan.num_steps):
            settings = self.job.pipeline.render_settings(self.job.preset, self.job.options.budget, settings_step)
            runner.read(everything, p.rows)
            runner.project(self.job.scene.camera(view), settings)
            runner.backward(runner.compose(), self.targets[view], 1.0)
            runner.write(np.empty(len(p), np.int32), np.empty((len(p), 64), np.float32))
        self.driver.warm_up()

    def _restructure(self, step: int) -> None:
        with self.spans.span("structure", step):
            job = self.job
            self.primitives, change = job.pipeline.restructure(
                self.primitives, job.scene, job.preset, job.options.budget, step, job.options.seed
            )
            self.driver.primitives = self.primitives
        if self.group.rank == 0:
            held = f", {change.held_back} held back by the cap" if change.held_back else ""
            reset = ", opacities reset" if change.opacity_reset else ""
            print(
                f"step {step}: {change.num_gs} primitives (+{change.duplicated} duplicated, +{change.split} split, "
                f"-{change.pruned} pruned{held}{reset})",
                flush=True,
            )

    def _checkpoint(self, step: int) -> None:
        every = self.job.options.checkpoint_every
        if not every or step == self.job.plan.num_steps or not (step % every == 0 or step in self.job.restructuring):
            return
        if self.group.rank == 0:
            save_checkpoint(
                self.run.checkpoints,
                Checkpoint(
                    primitives=self.primitives,
                    step=step,
                    identity=self.job.identity,
                    meters={"train_s": self.train_s, "wall_s": self.wall_s},
                ),
            )


def run_rank(run: RunDir, trainer_class: type[Trainer] = Trainer) -> None:
    """Train the run that `run` describes, as the rank the environment says. Raises what went wrong."""
    options = run.load_options()
    torch.set_num_threads(1)
    group = join_group(options.timeout_s)
    if group.world != options.ranks:
        raise ValueError(f"the run is for {options.ranks} ranks, {group.world} were started.")
    if options.pin:
        _pin(group)
    trainer: Trainer | None = None
    try:
        job = load_job(options)
        trainer = trainer_class(job, run, group)
        trainer.train()
        _publish(trainer, run)
    except BaseException as error:
        _record_failure(run, group.rank, trainer, error)
        raise
    group.close()


def _pin(group: Group) -> None:
    """One core a rank, in the order of the cores this process may use, where there is one for each."""
    cores = sorted(os.sched_getaffinity(0))
    local_world = sum(host == group.hosts[group.rank] for host in group.hosts)
    if 1 < local_world <= len(cores):
        os.sched_setaffinity(0, {cores[group.local_rank]})


def _publish(trainer: Trainer, run: RunDir) -> None:
    """Rank 0 writes the result; the others take part in the collectives."""
    group = trainer.group
    per_rank = group.gather({"wait_s": trainer.wait_s, "train_s": trainer.train_s, "totals_s": trainer.spans.totals_s})
    losses = [loss for rank_losses in group.gather(trainer.driver.last_losses) for loss in rank_losses]
    hashes = group.gather(trainer.primitives.sha256())
    if trainer.job.options.mode != "ddp" and len(set(hashes)) != 1:
        raise RuntimeError(f"the replicas differ at the end: {[value[:12] for value in hashes]}")
    if group.rank == 0:
        run.publish(
            trainer.job,
            trainer.primitives,
            wall_s=trainer.wall_s,
            per_rank=per_rank,
            transport=trainer.driver.transport_name,
            final_loss=float(np.mean(losses)),
            resumed_from=trainer.resumed_from,
            renderer=trainer.renderer.name,
        )
    group.barrier("publishing the result")


def _record_failure(run: RunDir, rank: int, trainer: Trainer | None, error: BaseException) -> None:
    step = int(trainer.progress[rank]) if trainer is not None else 0
    write_json(
        run.failure(rank),
        {
            "rank": rank,
            "step": step,
            "error": type(error).__name__,
            "message": str(error),
            "peer_lost": type(error).__name__ == "PeerLost",
            "traceback": traceback.format_exc(),
        },
    )


def _die_with_parent() -> None:
    """Ask the kernel to end this rank when the launcher ends: an orphan would go on writing into the run."""
    if sys.platform != "linux":
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() == 1 and "TORCHELASTIC_RUN_ID" in os.environ:
        os._exit(1)  # it ended before the call


def main(trainer_class: type[Trainer] = Trainer) -> None:
    _die_with_parent()
    run = RunDir(Path(sys.argv[1]))
    try:
        run_rank(run, trainer_class)
    except Exception as error:
        print(f"rank {os.environ.get('RANK', 0)}: {error}", file=sys.stderr, flush=True)
        if not isinstance(error, ValueError):
            traceback.print_exc()
        sys.stdout.flush()
        # no interpreter shutdown: a receiver thread may hang in a peer that is gone
        os._exit(1)


if __name__ == "__main__":
    main()
