"""What the saver does for one training process; see server.py for the requests."""

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
    """One process's. `slot_of` the memory that it stages into and fetches to."""

    def __init__(self, office: SaverService) -> None:
        self._office = office
        self._rank = -1
        self._member: Rank | None = None
        self._saving: SaveWorker | None = None
        self._asked = False
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
        }

    def answer(self, request: str, data: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
        """See server.py. Raises what is to be told."""
        if request not in self._requests:
            raise ValueError(f"there is no request {request!r}")
        answer = self._requests[request](data)
        beside = self._member if request == "join" else None
        return answer, -1 if beside is None else beside.fd

    def hang_up(self) -> None:
        """The process is gone; its memory stays for what is under way."""
        if self._saving is not None and self._member is not None:
            self._saving.lost(self._rank, self._member)

    def _join(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        rank, size, slots = int(data["rank"]), int(data["size"]), int(data["slots"])
        team = ProgramRanks(int(data["world_size"]), tuple(int(one) for one in data["ranks"]))
        if rank not in team.ranks:
            raise ValueError(f"rank {rank} is not among {team.ranks}")
        saving = self._office.gather(team)
        pieces = tuple(read_piece(item) for item in data["pieces"])
        before = saving.member(rank)
        if before is not None and (before.arena.size, before.arena.slots) == (size, slots):
            member = replace(before, pieces=pieces)  # with all that its memory has
        else:
            self._office.settle()  # it is of the memory before
            member = replace(self._make_member(rank, size, slots), pieces=pieces)
        self._rank, self._member, self._saving = rank, member, saving
        saving.join(rank, member)
        if before is not None and before.fd != member.fd:
            os.close(before.fd)
        return {}

    def _make_member(self, rank: int, size: int, slots: int) -> Rank:
        prefetch = self._office.prefetch
        made = prefetch.take(rank, size, slots) if prefetch is not None else None
        if made is None:
            fd = make_memory(size, slots)
            made = Rank(SharedMemory(fd, size, slots), fd, ())
        made.arena.fault_in()
        return made

    def _claim(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._member is None and not self._asked:
            self._office.wait_to_settle()
        self._asked = True
        head = self._office.claim(data["claim"], float(data["left_s"]), float(data["wait_s"]))
        if head is None:
            return {"waiting": True}
        return {"waiting": False, "final": head.final, "generation": head.generation}

    def _resume(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        office = self._office
        if "ref" in data:  # another rank's choice
            ref = HeadRef(**data["ref"])
            office.found = ref, read_manifest(office.store, ref)
        else:
            office.look_back(int(data["back"]), data["most_step"])
            office.found = office.chain.newest(data["config"])
        return self._found()

    def _skip(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        office = self._office
        office.chain.pass_over(str(data["why"]))
        office.found = office.chain.newest(data["config"])
        return self._found()

    def _found(self) -> Mapping[str, Any]:
        if self._office.found is None:
            return {"found": None}
        ref, manifest = self._office.found
        tensors = [asdict(tensor) for tensor in manifest.tensors]
        told = {"ref": asdict(ref), "state": dict(manifest.state), "tensors": tensors}
        return {"found": {**told, "sizes": [stream.size for stream in manifest.streams]}}

    def _fetch(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        office = self._office
        if office.found is None or self._member is None:
            raise ValueError("there is nothing to fetch: join and resume first")
        arena = self._member.arena
        ranges = [Range(*(int(number) for number in one)) for one in data["ranges"]]
        total = sum(one.size for one in ranges)
        if total > arena.size:
            raise ValueError(f"{total} bytes do not fit into {arena.size}")
        manifest = office.found[1]
        folder, saving = folder_of(manifest), office.saving
        whole = ranges == [Range(self._rank, 0, arena.size)]
        slot = saving.slot_for_fetch(self._rank, folder, whole=whole)
        nearer: list[LocalCopy] = [MemoryCopy(saving.holding(folder))]
        if office.local is not None:
            nearer.append(DiskCopy(office.local, folder))
        reader = Reader(office.store, manifest, nearer, office.readers)
        reader.fill(arena.slot(slot), ranges, lambda _: None)
        return {"slot": slot, "from": reader.tally.bytes}

    def _resumed(self, _: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._office.found is not None:
            self._office.fence.resume_from(self._office.found[0])
        return {}

    def _begin(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        office = self._office
        if office.saving.fenced is not None:
            raise office.saving.fenced
        office.end_prefetch()
        label = SnapshotLabel(
            generation=office.config.generation,
            world_size=office.saving.world_size,
            created_at_us=time.time_ns() // 1000,
            **data,
        )
        return {"slot": office.saving.begin(self._rank, label)}

    def _drain(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        saving, alone = self._office.saving, bool(data.get("alone"))
        done = saving.drain(float(data["timeout_s"]), alone=alone)
        if self._office.saving.fenced is not None:
            raise self._office.saving.fenced
        return {"drained": done}

    def _release(self, _: Mapping[str, Any]) -> Mapping[str, Any]:
        head = self._office.release()
        ref = head.current
        return {"step": ref.step if ref else 0, "manifest": ref.manifest if ref else ""}
