"""`spotctl advisor`: advice that starts nothing, and the records that it rests on."""

from __future__ import annotations

from spotd.cli.advise import advise
from spotd.cli.commitments import commitments
from spotd.cli.groups import IntoCommand, group
from spotd.cli.trace import trace

app = group()
app.command("job")(advise)
app.command("commitments")(commitments)
app.command("trace", cls=IntoCommand)(trace)


@app.callback()
def advisor() -> None:
    """Advise spot, on-demand or commitments, and export the availability that was recorded.

    \b
    Example:
      spotctl advisor job examples/finetune.yaml
    """
