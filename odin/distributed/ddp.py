"""The replicated baseline as PyTorch users have it: DistributedDataParallel, dense gradients, fused Adam.

Everything dense: each view projects all primitives, every parameter's gradient is all-reduced, Adam updates every row
every step. It shares the renderer, the schedule and the densification with the other modes; `ddp` is compared
with tolerances, since torch's Adam rounds differently.

Wait is what DDP users call exposed communication: from the moment a rank's own last gradient is there to the
moment the reduced gradients are.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from odin.data.scene import Camera
from odin.distributed.group import Group, PeerLost
from odin.primitives.primitive_set import COLUMNS, PrimitiveSet
from odin.rendering.interface import Gaussians, Renderer, RenderSettings
from odin.training.job import Job
from odin.training.spans import SpanLog
from odin.training.targets import TargetStore


class _RenderLoss(torch.autograd.Function):
    """Loss of one view from activated primitives. Gradients come from the renderer's own backward pass."""

    @staticmethod
    def forward(ctx, means, quats, scales, opacities, sh, view: _View):
        gaussians = Gaussians(
            **{
                name: tensor.detach().contiguous().numpy()
                for name, tensor in zip(
                    ("means", "quats", "scales", "opacities", "sh"), (means, quats, scales, opacities, sh), strict=True
                )
            }
        )
        splats = view.renderer.project(gaussians, view.camera, view.settings)
        image = view.renderer.compose(splats, view.camera, view.background)
        view.radii = splats.radii
        loss, view.image_gradient = view.renderer.loss(image.colors, view.target, view.ssim_weight)
        view.loss = loss
        ctx.view = view
        return means.new_tensor(loss)

    @staticmethod
    def backward(ctx, grad_output):
        view = ctx.view
        splat_gradients = view.renderer.compose_backward(view.image_gradient * np.float32(grad_output.item()))
        g = view.renderer.project_backward(splat_gradients)
        view.note_screen_gradients(splat_gradients.means2d, float(grad_output))
        view.backward_end = time.perf_counter()
        # DDP may keep what it is given; the renderer's buffers are used again by the next view
        return tuple(torch.from_numpy(x.copy()) for x in (g.means, g.quats, g.scales, g.opacities, g.sh)) + (None,)


class _View:
    """What one view's render needs beside the primitives, and what it leaves for densification."""

    def __init__(
        self, renderer: Renderer, camera: Camera, settings: RenderSettings, background, target, ssim_weight: float,
        stats: np.ndarray,
    ) -> None:  # fmt: skip
        self.renderer, self.camera, self.settings = renderer, camera, settings
        self.background, self.target, self.ssim_weight = background, target, ssim_weight
        self._stats = stats
        self.radii = self.image_gradient = None
        self.loss = float("nan")
        self.backward_end = 0.0

    def note_screen_gradients(self, means2d: np.ndarray, share: float) -> None:
        scale = np.array([0.5 * self.camera.width, 0.5 * self.camera.height], np.float32) / np.float32(share)
        seen = self.radii[:, 0] > 0
        self._stats[seen, 0] += np.linalg.norm(means2d[seen] * scale, axis=1)
        self._stats[seen, 1] += 1


class _Model(torch.nn.Module):
    def __init__(self, primitives: PrimitiveSet) -> None:
        super().__init__()
        for name in COLUMNS:
            values = torch.from_numpy(primitives.column(name).copy())
            if name in ("sh0", "shN"):
                values = values.reshape(len(primitives), -1, 3)
            self.register_parameter(name, torch.nn.Parameter(values))

    def forward(self, view: _View | None) -> torch.Tensor:
        if view is None:
            return sum((parameter.sum() * 0 for parameter in self.parameters()), torch.zeros(()))
        return _RenderLoss.apply(
            self.means, self.quats, self.scales.exp(), self.opacities.sigmoid()[:, 0],
            torch.cat([self.sh0, self.shN], 1), view,
        )  # fmt: skip


class DdpRank:
    """One rank of a run in mode `ddp`."""

    transport_name = "gloo"

    def __init__(
        self, job: Job, group: Group, primitives: PrimitiveSet, renderer: Renderer, targets: TargetStore,
        spans: SpanLog, on_step: Callable[[int], None],
    ) -> None:  # fmt: skip
        self.job = job
        self.group = group
        self.primitives = primitives
        self.last_losses: list[float] = []  # of this rank's units of the step it did last
        self._renderer = renderer
        self._targets = targets
        self._spans = spans
        self._on_step = on_step
        self._adam = job.pipeline.adam(job.scene, job.preset, job.options.budget)
        self._rates = self._adam.rates(job.plan.num_steps)

    def warm_up(self) -> None:
        """One all-reduce and one optimizer step on a few rows: torch loads and connects what it needs lazily."""
        few = self.primitives.take(np.arange(min(len(self.primitives), 64)))
        model = _Model(few)
        ddp = self._wrap(model)
        ddp(None).backward()
        torch.optim.Adam(model.parameters(), fused=True).step()

    def _wrap(self, model: _Model) -> torch.nn.Module:
        if self.group.world == 1:
            return model
        return DistributedDataParallel(model, gradient_as_bucket_view=True)

    def run_segment(self, first: int, last: int) -> None:
        """Train steps `first` to `last`; afterwards the rows hold the result and the screen gradients are summed."""
        start = time.perf_counter()
        model = _Model(self.primitives)
        ddp = self._wrap(model)
        optimizer = self._optimizer(model, first - 1)
        stats = np.zeros_like(self.primitives.stats)
        self._spans.add("structure", first, None, start, time.perf_counter())
        try:
            for step in range(first, last + 1):
                self._on_step(step)
                self._step(ddp, optimizer, stats, step)
        except RuntimeError as error:
            if self.group.world == 1:
                raise
            raise PeerLost(f"rank {self.group.rank}, step {step}: {str(error).splitlines()[0]}") from error
        with self._spans.span("structure", last):
            self._store(model, optimizer, last)
            self._sum_stats(stats)
        with self._spans.span("wait", last):
            self.group.barrier(f"after step {last}")

    def _step(self, ddp, optimizer, stats: np.ndarray, step: int) -> None:
        job, clock = self.job, time.perf_counter
        for lane_group in optimizer.param_groups:
            lane_group["lr"] = float(self._rates[step, COLUMNS[lane_group["name"]].start])
        optimizer.zero_grad(set_to_none=False)
        self.last_losses.clear()
        mine = np.flatnonzero(job.plan.rank_of[step - 1] == self.group.rank)
        settings = job.pipeline.render_settings(job.preset, job.options.budget, step)
        for place, index in enumerate(mine):
            view = int(job.plan.views[step - 1, index])
            context = _View(
                self._renderer, job.scene.camera(view), settings, job.background, self._targets[view],
                job.preset.ssim_weight, stats,
            )  # fmt: skip
            last = place == len(mine) - 1
            # DDP averages over ranks where the batch's gradient is a sum of shares
            share = self.group.world / job.plan.batch
            if self.group.world > 1:
                ddp.require_backward_grad_sync = last
            t0 = clock()
            loss = ddp(context) * share
            t1 = clock()
            loss.backward()
            t2 = clock()
            self.last_losses.append(context.loss)
            self._spans.add("render", step, int(index), t0, t1)
            self._spans.add("backward", step, int(index), t1, context.backward_end)
            self._spans.add(
                "wait" if last and self.group.world > 1 else "gather", step, int(index), context.backward_end, t2
            )
        if not len(mine):
            self._take_part(ddp, step)
        with self._spans.span("row_update", step):
            optimizer.step()

    def _take_part(self, ddp, step: int) -> None:
        """A rank without a view still enters the all-reduce, with zeros."""
        with self._spans.span("wait", step):
            ddp.require_backward_grad_sync = True
            ddp(None).backward()

    def _optimizer(self, model: _Model, done: int) -> torch.optim.Adam:
        groups = [{"params": [getattr(model, name)], "lr": 0.0, "name": name} for name in COLUMNS]
        optimizer = torch.optim.Adam(groups, betas=self._adam.betas, eps=self._adam.effective_eps, fused=True)
        for name, cols in COLUMNS.items():
            parameter = getattr(model, name)
            optimizer.state[parameter] = {
                "step": torch.tensor(float(done)),
                "exp_avg": torch.from_numpy(self.primitives.exp_avg[:, cols].copy()).reshape(parameter.shape),
                "exp_avg_sq": torch.from_numpy(self.primitives.exp_avg_sq[:, cols].copy()).reshape(parameter.shape),
            }
        return optimizer

    def _store(self, model: _Model, optimizer: torch.optim.Adam, step: int) -> None:
        p = self.primitives
        for name, cols in COLUMNS.items():
            parameter = getattr(model, name)
            state = optimizer.state[parameter]
            p.rows[:, cols] = parameter.detach().reshape(len(p), -1).numpy()
            p.exp_avg[:, cols] = state["exp_avg"].reshape(len(p), -1).numpy()
            p.exp_avg_sq[:, cols] = state["exp_avg_sq"].reshape(len(p), -1).numpy()
        p.version[:] = step

    def _sum_stats(self, stats: np.ndarray) -> None:
        """Every rank saw its own views: add them up, in rank order through the all-reduce."""
        total = torch.from_numpy(stats)
        if self.group.world > 1:
            dist.all_reduce(total)
        self.primitives.stats += total.numpy()
