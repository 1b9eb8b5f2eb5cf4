"""The ranks of a run: who they are, and the few collectives they need outside the hot path."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist


class PeerLost(RuntimeError):
    """A peer died, failed or did not answer in time. Names this rank, the step and the peer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Collectives on Python objects over gloo. Every rank enters each in the same order; a world of one needs none."""

    rank: int
    world: int
    local_rank: int
    timeout_s: float
    hosts: tuple[str, ...]  # by rank

    @property
    def single_host(self) -> bool:
        return len(set(self.hosts)) == 1

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.world == 1:
            return value
        box = [value]
        self._guarded("broadcast", lambda: dist.broadcast_object_list(box, src=0))
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on every rank."""
        if self.world == 1:
            return [value]
        boxes: list[Any] = [None] * self.world
        self._guarded("all_gather", lambda: dist.all_gather_object(boxes, value))
        return boxes

    def barrier(self, where: str) -> None:
        """Wait for all ranks. Raises PeerLost naming those that did not come within the timeout."""
        if self.world > 1:
            self._guarded(where, lambda: dist.monitored_barrier(timeout=timedelta(seconds=self.timeout_s)))

    def close(self) -> None:
        if self.world > 1:
            dist.destroy_process_group()

    def _guarded(self, where: str, call) -> None:
        try:
            call()
        except RuntimeError as error:
            raise PeerLost(f"rank {self.rank}, {where}: {str(error).splitlines()[0]}") from error


def join_group(timeout_s: float) -> Group:
    """Join the ranks that torchrun started (RANK, WORLD_SIZE, ... in the environment); alone without them."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    hosts: tuple[str, ...] = (_host(),)
    if world > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
        names: list[Any] = [None] * world
        dist.all_gather_object(names, _host())
        hosts = tuple(names)
    return Group(rank=rank, world=world, local_rank=local_rank, timeout_s=timeout_s, hosts=hosts)


def _host() -> str:
    """A name that two ranks share exactly when they share memory."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    # containers of one machine share the boot id but not necessarily /dev/shm
    return f"{socket.gethostname()}/{boot}"
