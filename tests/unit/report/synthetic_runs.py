"""Run directories made up for tests: every number is chosen, none is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from odin.data.jsonio import write_json

PROTOCOL = {
    "source": "colmap",
    "factor": 1.0,
    "resize": "none",
    "undistorted": False,
    "split": "index % 8 == 0",
    "background": [0.0, 0.0, 0.0],
}


def write_run(
    folder: Path,
    *,
    scene: str = "fox",
    mode: str = "sync",
    seed: int = 0,
    samples_per_s: float = 50.0,
    wait_s: tuple[float, ...] = (2.0, 4.0),
    psnr: float = 25.0,
    ssim: float = 0.8,
    lpips: float | None = None,
    model: str = "aa",
    kind: str = "measured",
    protocol: dict | None = None,
    metrics: bool = True,
    test_names: tuple[str, ...] = ("0.png", "8.png"),
    num_gs: int = 20_000,
    scene_sha256: str = "5c" * 32,
    **options: Any,
) -> Path:
    """A finished run of 2,000 images at batch 4; `options` go into run.json."""
    ranks = len(wait_s)
    train_s = 2000 / samples_per_s
    run = {"version": 1, "scene": scene, "scene_dir": f"scenes/{scene}", "scene_sha256": scene_sha256}
    run |= {"pipeline": "3dgs", "preset": "small", "mode": mode, "ranks": ranks, "batch": 4, "views": 2000}
    run |= {"steps": 500, "seed": seed, "plan_sha256": f"{seed:064d}", "balance": True} | options
    write_json(folder / "run.json", run)
    summary = {
        "kind": kind,
        "samples_per_s": samples_per_s,
        "wall_s": train_s + 1.0,
        "train_s": train_s,
        "wait_s": wait_s,
        "wait_share": [wait / train_s for wait in wait_s],
        "num_gs": num_gs,
        "model_sha256": model * 32,
        "steps": run["steps"],
        "views": run["views"],
        "final_loss": 0.1,
    }
    write_json(folder / "summary.json", summary)
    if metrics:
        mean = {"psnr": psnr, "ssim": ssim, "lpips": lpips, "num_views": len(test_names)}
        views = [{"name": name, "psnr": psnr, "ssim": ssim, "lpips": lpips} for name in test_names]
        record = {"version": 1, "kind": kind, "protocol": protocol or PROTOCOL, "mean": mean, "views": views}
        record |= {"definitions": {"ssim": "gaussian"}, "num_gs": num_gs, "model_sha256": model * 32}
        record["lpips_reason"] = None if lpips is not None else "no LPIPS weights configured"
        write_json(folder / "metrics.json", record)
    return folder


def write_spans(folder: Path, mode: str, *, num_ranks: int = 2, num_steps: int = 8, seed: int = 0) -> None:
    """Two units a rank and step; `sync` waits for the slowest rank in each step, other modes hardly do."""
    rng = np.random.default_rng(seed)
    clocks = [1000.0] * num_ranks
    lines: list[list[str]] = [[] for _ in range(num_ranks)]

    def add(rank: int, name: str, step: int, unit: int | None, dur_s: float) -> None:
        span = {"name": name, "step": step, "unit": unit, "start_s": clocks[rank], "dur_s": dur_s}
        lines[rank].append(json.dumps(span))
        clocks[rank] += dur_s

    for step in range(1, num_steps + 1):
        for rank in range(num_ranks):
            for unit in range(2):
                add(rank, "scope", step, 2 * rank + unit, 0.0003)
                add(rank, "gather", step, 2 * rank + unit, 0.0006)
                add(rank, "render", step, 2 * rank + unit, rng.uniform(0.004, 0.008))
                add(rank, "backward", step, 2 * rank + unit, rng.uniform(0.006, 0.012))
                add(rank, "exchange", step, 2 * rank + unit, 0.0012)
        latest = max(clocks) if mode in ("sync", "ddp") else 0.0
        for rank in range(num_ranks):
            waited = max(latest - clocks[rank], 0.0) + (0.003 if mode == "ddp" else 0.0)
            if waited > 0:
                add(rank, "wait", step, None, waited)
            add(rank, "row_update", step, None, 0.0025)
    (folder / "spans").mkdir(parents=True, exist_ok=True)
    for rank in range(num_ranks):
        (folder / "spans" / f"rank{rank}.jsonl").write_text("\n".join(lines[rank]) + "\n")
