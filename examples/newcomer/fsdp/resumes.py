"""FSDP2 over the machine's processes, started by torchrun. It goes on from the newest."""

import os
import time

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

device = "cuda" if torch.cuda.is_available() else "cpu"
dist.init_process_group("nccl" if device == "cuda" else "gloo")
rank = dist.get_rank()
if device == "cuda":
    torch.cuda.set_device(rank)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
fully_shard(model.to(device), mesh=init_device_mesh(device, (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters())
whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
os.makedirs("out", exist_ok=True)
begin = 0
if path := os.environ.get("SPOTD_RESUME"):
    state = torch.load(path, map_location="cpu", weights_only=True)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=whole,
    )
    begin = state["step"]
for step in range(begin + 1, int(os.environ.get("STEPS", "600")) + 1):
    rows = torch.randn(32, 64, generator=torch.Generator().manual_seed(step * 100 + rank))
    rows = rows.to(device)
    loss = (model(rows) - rows.square()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(float(os.environ.get("STEP_S", "0.05")))
    if step % 20 == 0:
        weights, moments = get_state_dict(model, optimizer, options=whole)  # on every rank
        if rank == 0:
            torch.save({"model": weights, "optimizer": moments, "step": step}, "out/new.tmp")
            os.replace("out/new.tmp", f"out/checkpoint_{step}.pt")
            print(f"step {step} loss {loss.item():.4f}", flush=True)
dist.barrier()  # rank 0 may still write
dist.destroy_process_group()
