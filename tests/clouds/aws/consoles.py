"""What machines write to their serial consoles, as GetConsoleOutput tells it."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from tests.clouds.aws import replies


class Consoles:
    """`said` is by instance; of others moto invents something. `live`: what was written last is
    told, of types that can do that."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.live = True

    def answer(self, region: str, form: Mapping[str, str]) -> tuple[int, bytes] | None:
        """GetConsoleOutput; None for what moto is to answer."""
        if form.get("Latest") == "true" and not self.live:
            words = "This instance type does not support retrieving the latest console logs."
            return replies.error(400, "UnsupportedOperation", words)
        text = self.said.get(form["InstanceId"])
        if text is None:
            return None
        output = base64.b64encode(text.encode()).decode()
        body: dict[str, replies.Tree] = {"instanceId": form["InstanceId"], "output": output}
        return replies.answer("GetConsoleOutput", body)
