"""Transports: how announcements and row gradients reach the other ranks' slots.

`SharedMemory`: the ranks of one host map the same slots; the unit's kernel writes its touched rows straight into
them and a flag says so. `Gloo`: the same slots on each rank, filled by one blocking receiver thread a peer. A
slot is written again only when its readers have retired the step that it held.
"""

from __future__ import annotations

import mmap
import os
import platform
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist

from odin.distributed.group import Group, PeerLost
from odin.distributed.slots import Slots, slots_bytes, slots_in

_SHARED_DIR = Path("/dev/shm")


class Transport(Protocol):
    name: str
    slots: Slots

    def announce(self, step: int, index: int) -> None:
        """`slots.visible` of the own unit is written: let the others see it."""
        ...

    def deliver(self, step: int, index: int) -> None:
        """`slots.ids`, `gradients` and `counts` of the own unit are written: let the others see them."""
        ...

    def retire(self, step: int) -> None:
        """This rank will not read slots of steps up to `step` any more."""
        ...

    def slot_free(self, step: int) -> bool:
        """Whether own units of `step` may be written: nobody reads the step that held the slot."""
        ...

    def fail(self, step: int) -> None:
        """Tell the others, as far as possible, that this rank stops."""
        ...

    def check(self, step: int) -> None:
        """Raises PeerLost where a peer is known to have failed."""
        ...

    def close(self) -> None: ...


class SharedMemory:
    """All ranks on one host. Relies on the total store order of x86: rows are written before their flag."""

    name = "shared-memory"

    def __init__(self, group: Group, buffer: mmap.mmap, slots: Slots) -> None:
        self._group = group
        self._buffer = buffer
        self._ring = len(slots.delivered)
        self.slots = slots

    def announce(self, step: int, index: int) -> None:
        self.slots.announced[step % self._ring, index] = step

    def deliver(self, step: int, index: int) -> None:
        self.slots.delivered[step % self._ring, index] = step

    def retire(self, step: int) -> None:
        self.slots.retired[self._group.rank, 0] = step

    def slot_free(self, step: int) -> bool:
        return bool((self.slots.retired[:, 0] >= step - self._ring).all())

    def fail(self, step: int) -> None:
        self.slots.failed[self._group.rank, 0] = max(step, 1)

    def check(self, step: int) -> None:
        failed = np.flatnonzero(self.slots.failed[:, 0])
        if len(failed):
            peer = int(failed[0])
            raise PeerLost(
                f"rank {self._group.rank}, step {step}: rank {peer} failed at step {self.slots.failed[peer, 0]}"
            )

    def close(self) -> None:
        # the mapping goes when the last array over it does
        self.slots = None  # type: ignore[assignment]


def _map_shared(path: str, size: int) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)


def open_shared(group: Group, num_rows: int, batch: int, ring: int, first_step: int) -> SharedMemory:
    """A fresh arena for all ranks of the host. Its name vanishes as soon as all have mapped it, so nothing leaks."""
    size = slots_bytes(num_rows, batch, ring, group.world)
    if group.world == 1:
        buffer = mmap.mmap(-1, size)
    else:
        path = None
        if group.rank == 0:
            fd, path = tempfile.mkstemp(prefix="odin-", dir=_SHARED_DIR)
            os.ftruncate(fd, size)
            os.close(fd)
        path = group.broadcast(path)
        buffer = _map_shared(path, size)
        group.barrier("mapping shared memory")
        if group.rank == 0:
            os.unlink(path)
    slots = slots_in(buffer, num_rows, batch, ring, group.world)
    slots.retired[group.rank, 0] = first_step - 1
    group.barrier("opening shared memory")
    return SharedMemory(group, buffer, slots)


_ANNOUNCE, _DELIVER, _STOP = 1, 2, 3


class Gloo:
    """Ranks anywhere. Messages of one sender arrive in order; the receiver holds back until the slot is free."""

    name = "gloo"

    def __init__(self, group: Group, num_rows: int, batch: int, ring: int, first_step: int) -> None:
        self._group = group
        self._ring = ring
        self.slots = slots_in(
            mmap.mmap(-1, slots_bytes(num_rows, batch, ring, group.world)), num_rows, batch, ring, group.world
        )
        self._retired = first_step - 1
        self._progress = threading.Condition()
        self._error: PeerLost | None = None
        self._sends: dict[int, list] = {}
        self._peers = [peer for peer in range(group.world) if peer != group.rank]
        self._receivers = [
            threading.Thread(target=self._receive_from, args=(peer,), name=f"from rank {peer}", daemon=True)
            for peer in self._peers
        ]
        for thread in self._receivers:
            thread.start()

    def announce(self, step: int, index: int) -> None:
        visible = self.slots.visible[step % self._ring, index]
        self._send(step, (_ANNOUNCE, step, index, 0, 0), visible.view(np.int64))

    def deliver(self, step: int, index: int) -> None:
        slot = step % self._ring
        seen, touched = (int(n) for n in self.slots.counts[slot, index])
        self.slots.delivered[slot, index] = step
        self._send(
            step, (_DELIVER, step, index, seen, touched),
            self.slots.ids[slot, index, :seen], self.slots.gradients[slot, index, :touched],
        )  # fmt: skip

    def retire(self, step: int) -> None:
        with self._progress:
            self._retired = step
            self._progress.notify_all()
        self.slots.retired[self._group.rank, 0] = step

    def slot_free(self, step: int) -> bool:
        """Peers have slots of their own; here only the own sends out of the slot matter."""
        for work in self._sends.pop(step - self._ring, []):
            work.wait()
        return True

    def fail(self, step: int) -> None:
        """Nothing to do: the connection breaks, and the peers' receivers notice."""

    def check(self, step: int) -> None:
        if self._error is not None:
            raise PeerLost(f"rank {self._group.rank}, step {step}: {self._error}") from self._error

    def close(self) -> None:
        """Wait until every message of this segment has gone and come."""
        self._send(-1, (_STOP, 0, 0, 0, 0))
        for works in self._sends.values():
            for work in works:
                work.wait()
        for thread in self._receivers:
            thread.join(self._group.timeout_s)
        self.check(self._retired)

    def _send(self, step: int, header: tuple[int, ...], *parts: np.ndarray) -> None:
        tensors = [torch.tensor(header, dtype=torch.int64), *(torch.from_numpy(part) for part in parts)]
        works = self._sends.setdefault(step, [])
        for peer in self._peers:
            works.extend(dist.isend(tensor, peer) for tensor in tensors if tensor.numel())

    def _receive_from(self, peer: int) -> None:
        header = torch.empty(5, dtype=torch.int64)
        try:
            while True:
                dist.recv(header, peer)
                kind, step, index, seen, touched = header.tolist()
                if kind == _STOP:
                    return
                slot = step % self._ring
                with self._progress:
                    if not self._progress.wait_for(lambda: self._retired >= step - self._ring, self._group.timeout_s):  # noqa: B023
                        raise RuntimeError(f"no free slot for step {step} within {self._group.timeout_s} s")
                if kind == _ANNOUNCE:
                    dist.recv(torch.from_numpy(self.slots.visible[slot, index].view(np.int64)), peer)
                    self.slots.announced[slot, index] = step
                else:
                    self._receive_rows(peer, slot, index, seen, touched)
                    self.slots.delivered[slot, index] = step
        except RuntimeError as error:
            self._error = PeerLost(f"lost rank {peer}: {str(error).splitlines()[0]}")

    def _receive_rows(self, peer: int, slot: int, index: int, seen: int, touched: int) -> None:
        if seen:
            dist.recv(torch.from_numpy(self.slots.ids[slot, index, :seen]), peer)
        if touched:
            dist.recv(torch.from_numpy(self.slots.gradients[slot, index, :touched]), peer)
        self.slots.counts[slot, index] = (seen, touched)


def choose_transport(asked: str, group: Group, num_rows: int, batch: int, ring: int) -> tuple[str, str]:
    """Name of the transport and the reason for it, the same on every rank. ValueError where the asked one can't be."""
    size = slots_bytes(num_rows, batch, ring, group.world)
    obstacles = []
    if group.world > 1:
        if not group.single_host:
            obstacles.append(f"the ranks are on {len(set(group.hosts))} hosts")
        if platform.machine() not in ("x86_64", "AMD64"):
            obstacles.append(f"{platform.machine()} does not keep the order of stores")
        if not _SHARED_DIR.is_dir():
            obstacles.append(f"{_SHARED_DIR} is missing")
        elif shutil.disk_usage(_SHARED_DIR).free < size:
            obstacles.append(f"{_SHARED_DIR} has less than {size / 2**20:.0f} MiB free")
    obstacle = group.broadcast("; ".join(obstacles))
    if asked == "gloo" and group.world > 1:
        return "gloo", "as asked"
    if not obstacle:
        return "shared-memory", "one rank" if group.world == 1 else "all ranks are on one host"
    if asked == "shared-memory":
        raise ValueError(f"transport shared-memory cannot be used: {obstacle}. Use --transport auto or gloo.")
    return "gloo", obstacle


def open_transport(name: str, group: Group, num_rows: int, batch: int, ring: int, first_step: int) -> Transport:
    if name == "gloo":
        return Gloo(group, num_rows, batch, ring, first_step)
    return open_shared(group, num_rows, batch, ring, first_step)
