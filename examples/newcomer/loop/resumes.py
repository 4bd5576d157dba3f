"""A plain loop that saves its weights now and then, and goes on from the newest."""

import os
import time

import torch

torch.manual_seed(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
os.makedirs("out", exist_ok=True)
begin = 0
if path := os.environ.get("SPOTD_RESUME"):
    model.load_state_dict(torch.load(path, weights_only=True))
    begin = int(path.split("_")[-1].removesuffix(".bin"))
for step in range(begin + 1, int(os.environ.get("STEPS", "200")) + 1):
    rows = torch.randn(32, 64)
    loss = (model(rows) - rows.square()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    if step % 20 == 0:
        torch.save(model.state_dict(), f"out/model_{step}.bin")
        print(f"step {step} loss {loss.item():.4f}", flush=True)
