"""Serial console output of machines for GetConsoleOutput."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from tests.clouds.aws import replies


class Consoles:
    """`said` is by instance; moto invents output for others. `live`: types that support it return
    the latest output."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.live = True

    def answer(self, region: str, form: Mapping[str, str]) -> tuple[int, bytes] | None:
        """Answer GetConsoleOutput; None leaves it to moto."""
        if form.get("Latest") == "true" and not self.live:
            message = "This instance type does not support retrieving the latest console logs."
            return replies.error(400, "UnsupportedOperation", message)
        text = self.said.get(form["InstanceId"])
        if text is None:
            return None
        output = base64.b64encode(text.encode()).decode()
        body: dict[str, replies.Tree] = {"instanceId": form["InstanceId"], "output": output}
        return replies.answer("GetConsoleOutput", body)
