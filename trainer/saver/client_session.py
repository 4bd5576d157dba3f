"""The saver's session with one training process; socket_server.py lists the requests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from spotd.wire import HeadRef
from trainer.hook.spotd_hook.shared_memory import SharedMemory, make_memory
from trainer.saver.local_copies import DiskCopy, MemoryCopy, folder_of
from trainer.saver.parts import read_piece
from trainer.saver.rank_upload import SnapshotLabel
from trainer.saver.reader import LocalCopy, Range, Reader, read_manifest
from trainer.saver.save_worker import SaveWorker
from trainer.saver.service import ProgramRanks, SaverService
from trainer.saver.snapshot import Rank


class ClientSession:
    """Handles the requests of one training process."""

    def __init__(self, service: SaverService) -> None:
        self._service = service
        self._rank = -1
        self._member: Rank | None = None
        self._worker: SaveWorker | None = None
        self._claim_requested = False
        self._requests: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
            "hello": lambda _: {},
            "join": self._join,
            "claim": self._claim,
            "resume": self._resume,
            "fetch": self._fetch,
            "skip": self._skip,
            "resumed": self._resumed,
            "begin": self._begin,
            "drain": self._drain,
            "release": self._release,
            "finish": lambda _: {"finished": service.finish_job()},
        }

    def handle(self, request: str, data: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
        """Handle one request (see socket_server.py); whatever it raises becomes the error reply.

        Returns the reply and a file descriptor to send with it, or -1.
        """
        if request not in self._requests:
            raise ValueError(f"there is no request {request!r}")
        reply = self._requests[request](data)
        member = self._member if request == "join" else None
        return reply, -1 if member is None else member.fd

    def disconnected(self) -> None:
        """Handle the end of the process. Its memory stays mapped while snapshots are uploaded."""
        if self._worker is not None and self._member is not None:
            self._worker.rank_lost(self._rank, self._member)

    def _join(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        rank, size, slots = int(data["rank"]), int(data["size"]), int(data["slots"])
        program = ProgramRanks(
            int(data["world_size"]), tuple(int(number) for number in data["ranks"])
        )
        if rank not in program.ranks:
            raise ValueError(f"rank {rank} is not among {program.ranks}")
        worker = self._service.worker_for(program)
        pieces = tuple(read_piece(item) for item in data["pieces"])
        previous = worker.member(rank)
        if previous is not None and (previous.memory.size, previous.memory.slots) == (size, slots):
            member = replace(previous, pieces=pieces)  # keeps the contents of its memory
        else:
            self._service.wait_until_idle()  # snapshots use the old memory
            member = replace(self._make_member(rank, size, slots), pieces=pieces)
        self._rank, self._member, self._worker = rank, member, worker
        worker.join(rank, member)
        if previous is not None and previous.fd != member.fd:
            os.close(previous.fd)
        return {}

    def _make_member(self, rank: int, size: int, slots: int) -> Rank:
        prefetch = self._service.prefetch
        member = prefetch.take(rank, size, slots) if prefetch is not None else None
        if member is None:
            fd = make_memory(size, slots)
            member = Rank(SharedMemory(fd, size, slots), fd, ())
        member.memory.fault_in()
        return member

    def _claim(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._member is None and not self._claim_requested:
            self._service.extend_settle_time()
        self._claim_requested = True
        head = self._service.claim(data["claim"], float(data["left_s"]), float(data["wait_s"]))
        if head is None:
            return {"waiting": True}
        return {"waiting": False, "final": head.final, "generation": head.generation}

    def _resume(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        service = self._service
        if "ref" in data:  # chosen by another rank
            ref = HeadRef(**data["ref"])
            service.resume_point = ref, read_manifest(service.store, ref)
        else:
            service.start_resume_chain(int(data["back"]), data["most_step"])
            service.resume_point = service.chain.newest(data["config"])
        return self._resume_reply()

    def _skip(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        service = self._service
        service.chain.skip(str(data["why"]))
        service.resume_point = service.chain.newest(data["config"])
        return self._resume_reply()

    def _resume_reply(self) -> Mapping[str, Any]:
        if self._service.resume_point is None:
            return {"found": None}
        ref, manifest = self._service.resume_point
        tensors = [asdict(tensor) for tensor in manifest.tensors]
        data = {"ref": asdict(ref), "state": dict(manifest.state), "tensors": tensors}
        return {"found": {**data, "sizes": [stream.size for stream in manifest.streams]}}

    def _fetch(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        service = self._service
        if service.resume_point is None or self._member is None:
            raise ValueError("there is nothing to fetch: join and resume first")
        memory = self._member.memory
        ranges = [Range(*(int(number) for number in numbers)) for numbers in data["ranges"]]
        total = sum(wanted.size for wanted in ranges)
        if total > memory.size:
            raise ValueError(f"{total} bytes do not fit into {memory.size}")
        manifest = service.resume_point[1]
        checkpoint_folder, worker = folder_of(manifest), service.worker
        fetches_all = ranges == [Range(self._rank, 0, memory.size)]
        slot = worker.slot_for_fetch(self._rank, checkpoint_folder, whole_stream=fetches_all)
        local_copies: list[LocalCopy] = [MemoryCopy(worker.slots_holding(checkpoint_folder))]
        if service.local is not None:
            local_copies.append(DiskCopy(service.local, checkpoint_folder))
        reader = Reader(service.store, manifest, local_copies, service.readers)
        reader.fill(memory.slot(slot), ranges, lambda _: None)
        return {"slot": slot, "from": reader.bytes_by_source.bytes}

    def _resumed(self, _: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._service.resume_point is not None:
            self._service.fence.resume_from(self._service.resume_point[0])
        return {}

    def _begin(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        service = self._service
        if service.worker.fenced is not None:
            raise service.worker.fenced
        service.drop_prefetch()
        label = SnapshotLabel(
            generation=service.config.generation,
            world_size=service.worker.world_size,
            created_at_us=time.time_ns() // 1000,
            **data,
        )
        return {"slot": service.worker.begin(self._rank, label)}

    def _drain(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        worker, drop_waiting = self._service.worker, bool(data.get("alone"))
        drained = worker.drain(float(data["timeout_s"]), drop_waiting=drop_waiting)
        if self._service.worker.fenced is not None:
            raise self._service.worker.fenced
        head = self._service.fence.head if self._rank == 0 else None
        ref = head.current if head else None
        return {"drained": drained, "ref": asdict(ref) if drained and ref else None}

    def _release(self, _: Mapping[str, Any]) -> Mapping[str, Any]:
        head = self._service.release()
        ref = head.current
        return {"step": ref.step if ref else 0, "manifest": ref.manifest if ref else ""}
