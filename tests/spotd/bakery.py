"""A stage whose clouds make images and whose machines can be cleaned for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from providers.base import RejectedError
from providers.images import Image, ImageState, check_name
from spotd import wire
from spotd.act.image_builder import UncleanDiskError
from spotd.act.node_link import LinkError
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.domain.states import NodeState
from spotd.security.secrets import JobKeys
from spotd.store.images import ImageRow
from spotd.wire import Command, Reply
from tests.spotd.fake_world import Stage, ToyCloud, ToyLink

MAKING_LOOKS = 2  # questions until an image is there


@dataclass
class Made:
    """An image, and the disk that it was begun of."""

    image: Image
    instance_id: str
    clean: bool
    looks: int = 0


class BakingCloud(ToyCloud):
    """Also keeps the contract of `ImageMaker`. `fails` is why its images fail."""

    def __init__(self, stage: Stage, name: str) -> None:
        super().__init__(name, stage.clock, stage.commits, lambda: stage.goal)
        self.made: dict[str, Made] = {}
        self.cleaned: set[str] = set()
        self.fails = ""

    def make_image(self, instance_id: str, name: str, tags: Mapping[str, str]) -> Image:
        self._call("make_image")
        check_name(name)
        if name not in self.made:
            if instance_id not in self.alive:
                raise RejectedError(f"{instance_id} is gone, and no image can be made of it")
            image = Image(f"ami-{name}", name, ImageState.MAKING, f"{self.name}-1", tags)
            self.made[name] = Made(image, instance_id, instance_id in self.cleaned)
        made = self.made[name]
        made.looks += 1
        if self.fails:
            made.image = replace(made.image, state=ImageState.FAILED, error=self.fails)
        elif made.looks > MAKING_LOOKS:
            now_us = self._clock.now_us()
            made.image = replace(
                made.image, state=ImageState.AVAILABLE, made_at_us=now_us, size_gib=200
            )
        self._answer("make_image")
        return made.image

    def images(self) -> Sequence[Image]:
        self._call("images")
        return [made.image for made in self.made.values()]

    def remove_image(self, image_id: str) -> None:
        self._call("remove_image")
        self.made = {n: m for n, m in self.made.items() if m.image.image_id != image_id}
        self._answer("remove_image")


class BakingLink(ToyLink):
    """`setup` is over as soon as it began. `dirty` is what cannot be taken off a disk; `lost`
    answers of a `clean` that was done are not heard."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.clouds, stage.clock)
        self.clean_clouds: dict[str, BakingCloud] = {}
        self.dirty = ""
        self.lost = 0
        self.cleans = 0
        self.setups: list[str] = []

    def _machine(self, node: Node):  # type: ignore[no-untyped-def]
        machine = super()._machine(node)
        if node.instance_id in self.clean_clouds[node.offer.provider].cleaned:
            raise LinkError("SshAuthRefusedError: it refuses the job's key")
        return machine

    def send(self, node: Node, keys: JobKeys, command: Command, deadline_s: float) -> Reply:
        if command.name == wire.START:
            self.setups.append(str(command.data["setup"]))
        if command.name != wire.START or not command.data["bake"]:
            return super().send(node, keys, command, deadline_s)
        machine = self._machine(node)
        self.said[command.name] += 1
        if machine.exited is None:
            machine.exited = wire.EXIT_FINISHED
            machine.say(wire.SETUP, status="ok", seconds=1.0)
            machine.say(wire.EXITED, code=wire.EXIT_FINISHED)
        return Reply(True)

    def clean(self, node: Node, keys: JobKeys, prepared_file: str, deadline_s: float) -> None:
        self._machine(node)
        self.cleans += 1
        if self.dirty:
            raise UncleanDiskError(self.dirty)
        self.clean_clouds[node.offer.provider].cleaned.add(node.instance_id)
        if self.lost:
            self.lost -= 1
            raise LinkError("SshUnreachableError: the connection broke")


class Bakery(Stage):
    """See the module. `look` is the duty that removes images."""

    link: BakingLink

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tick_s = 2.0  # what is waited for here takes seconds
        self.bakers = {name: BakingCloud(self, name) for name in self.clouds}
        for name, cloud in self.clouds.items():
            self.bakers[name].on_sale = cloud.on_sale
        self.clouds: dict[str, ToyCloud] = dict(self.bakers)
        self.link = BakingLink(self)
        self.link.clean_clouds = self.bakers
        self.start()

    def bake(self, job_id: str = "j1", name: str = "torch") -> Job:
        fields = {"bake": name, "setup": "pip install torch", "run": ""}
        return self.submit(job_id, **fields)

    def baked(self, job_id: str = "j1") -> bool:
        return self.over(job_id)

    def look(self, after_s: float = 300.0) -> None:
        self.clock.sleep(after_s)
        for name in self.clouds:
            self.survey.clear_up(name, self.duty(f"leftovers:{name}"))

    def images(self) -> list[ImageRow]:
        return self.store.images.rows()

    def leaked(self) -> list[str]:
        """Images in the clouds that no job may start from."""
        good = {row.vendor_name for row in self.images() if row.good}
        return [n for cloud in self.bakers.values() for n in cloud.made if n not in good]

    def booting(self) -> Node:
        return self.nodes("j1", NodeState.BOOTING)[-1]
