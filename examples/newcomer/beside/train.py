"""A loop that resumes from its checkpoints, and writes its model and a report beside them."""

import json
import os
import time
from pathlib import Path

import torch

torch.manual_seed(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
begin = 0
saved = sorted(Path("checkpoints").glob("step_*.pt"), key=lambda path: int(path.stem[5:]))
if saved:
    state = torch.load(saved[-1], weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    begin = state["step"]
os.makedirs("checkpoints", exist_ok=True)
for step in range(begin + 1, int(os.environ.get("STEPS", "200")) + 1):
    rows = torch.randn(32, 64, generator=torch.Generator().manual_seed(step))
    loss = (model(rows) - rows.square()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    if step % 20 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, f"checkpoints/step_{step}.pt")
os.makedirs("final", exist_ok=True)
torch.save(model.state_dict(), "final/model.bin")
Path("report.json").write_text(json.dumps({"steps": step, "loss": loss.item()}))
