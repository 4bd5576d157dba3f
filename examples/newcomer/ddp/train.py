"""DistributedDataParallel over the machine's processes, started by torchrun. It resumes."""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank = dist.get_rank()
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
begin = 0
if os.path.exists("out/checkpoint.pt"):
    state = torch.load("out/checkpoint.pt", map_location="cpu", weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    begin = state["step"]
os.makedirs("out", exist_ok=True)
for step in range(begin + 1, int(os.environ.get("STEPS", "600")) + 1):
    rows = torch.randn(32, 64, generator=torch.Generator().manual_seed(step * 100 + rank))
    loss = (model(rows) - rows.square()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    if step % 100 == 0 and rank == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "step": step}, "out/checkpoint.tmp")
        os.replace("out/checkpoint.tmp", "out/checkpoint.pt")
        print(f"step {step} loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
