"""Starts the ranks of a run and watches them: torchrun's elastic agent, one process a rank, no fixed port."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable

import numpy as np

from odin.data.jsonio import read_json
from odin.primitives.checkpoint import list_checkpoints
from odin.training.options import TrainOptions
from odin.training.run_dir import RunDir

#: one thread a rank: with more the ranks would fight for the cores, and sums would lose their order
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
_AGENT = "torch.distributed.elastic"


class TrainingFailed(RuntimeError):
    """A rank failed; the message names the first one and its step."""


def launch(
    run: RunDir,
    options: TrainOptions,
    *,
    num_steps: int,
    on_progress: Callable[[int], None],
    module: str = "odin.distributed.worker",
) -> None:
    """Run all ranks to the end, each as ``python -m module RUN_DIR``.

    `on_progress` gets the step of the slowest rank a few times a second.

    Raises TrainingFailed naming the first failing rank and its step; no rank is left behind.
    """
    progress = run.map_progress(options.ranks)
    progress[:] = 0
    stop = threading.Event()
    watcher = threading.Thread(target=_watch, args=(progress, num_steps, on_progress, stop), daemon=True)
    watcher.start()
    environment = dict.fromkeys(_THREADS, "1") | {"PYTHONUNBUFFERED": "1"}
    if options.ranks > 1:
        # the ranks started here are on this host; gloo must not pick an interface of its own
        environment["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    try:
        if options.ranks == 1:
            _run_alone(run, _command(module, run), environment, progress)
        else:
            _run_agent(run, options, _command(module, run), environment, progress)
    finally:
        stop.set()
        watcher.join()
    on_progress(num_steps)


def _command(module: str, run: RunDir) -> list[str]:
    return ["-m", module, str(run.path)]


def _run_alone(run: RunDir, command: list[str], environment: dict[str, str], progress: np.ndarray) -> None:
    # In a session of its own, as the agent's ranks are: Ctrl-C reaches the launcher only, which ends the rank.
    process = subprocess.Popen([sys.executable, *command], env=os.environ | environment, start_new_session=True)
    try:
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code:
        raise TrainingFailed(_describe(run, progress, {0: code}))


def _run_agent(
    run: RunDir, options: TrainOptions, command: list[str], environment: dict[str, str], progress: np.ndarray
) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _quieten_agent()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=options.ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # any free port
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
        # Signals stay with whoever started the run: their exceptions (KeyboardInterrupt) pass through the agent, which
        # ends all ranks. Its own handlers would stay installed afterwards, and it takes no empty list.
        signals_to_handle="SIGQUIT",
    )
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        elastic_launch(config, sys.executable)(*command)
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        raise TrainingFailed(_describe(run, progress, codes)) from None
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _quieten_agent() -> None:
    """The agent logs what it does to ranks that end; what is wrong with them is for `_describe` to say."""
    for name in [name for name in logging.root.manager.loggerDict if name.startswith(_AGENT)]:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _describe(run: RunDir, progress: np.ndarray, codes: dict[int, int]) -> str:
    """Which rank failed first, at which step, why. A lost peer is a consequence: the cause comes before it."""
    records = [read_json(path) for path in sorted(run.path.glob("failure-rank*.json"))]
    causes = [record for record in records if not record["peer_lost"]]
    killed = {rank: code for rank, code in codes.items() if code < 0 and not run.failure(rank).exists()}
    if causes and causes[0]["step"] == 0 and causes[0]["error"] == "ValueError":
        return causes[0]["message"]  # about what was asked, not about the training
    if causes:
        first = causes[0]
        text = f"rank {first['rank']} failed at step {first['step']}: {first['message']}"
    elif killed:
        # the agent ends the others with SIGTERM
        rank, code = min(killed.items(), key=lambda item: (item[1] == -signal.SIGTERM, item[0]))
        name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
        text = f"rank {rank} was killed by {name} at step {int(progress[rank])}"
    elif records:
        text = f"rank {records[0]['rank']} lost a peer: {records[0]['message']}"
    else:
        rank, code = min(codes.items())
        text = f"rank {rank} ended with exit code {code} at step {int(progress[rank])}; see its output above"
    text = text.rstrip(".") + "."
    return f"{text} The same command goes on from the last checkpoint." if list_checkpoints(run.checkpoints) else text


def _watch(progress: np.ndarray, num_steps: int, on_progress: Callable[[int], None], stop: threading.Event) -> None:
    while not stop.wait(0.2):
        on_progress(min(int(progress.min()), num_steps))
