"""GPUs: memory for programs, peak speed, and link bandwidth.

Memory is what a driver leaves to programs (`torch.cuda.get_device_properties(0).total_memory`), in
GiB. Speed is the vendor's dense BF16 peak: figures "with sparsity" are twice that, and no training
reaches them. `link_gb_s` is the bus bandwidth that collectives reach between the GPUs of one
machine, in GB/s (NVLink, else PCIe).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """One kind of GPU. `fp8` is how much faster FP8 is at its peak; 1 without FP8."""

    name: str
    memory_gib: float
    bf16_tflops: float
    link_gb_s: float
    fp8: int = 1


_CARDS = {
    card.name: card
    for card in (
        Card("T4", 14.6, 65.0, 10.0),  # FP16; it has no BF16
        Card("V100", 15.8, 125.0, 130.0),  # FP16; it has no BF16
        Card("V100-32GB", 31.7, 125.0, 130.0),
        Card("A10G", 22.1, 70.0, 20.0),
        Card("A10", 22.1, 125.0, 20.0),
        Card("L4", 22.0, 121.0, 20.0, 2),
        Card("RTX3090", 23.7, 71.0, 10.0),
        Card("RTX4090", 23.6, 165.0, 20.0, 2),
        Card("A5000", 23.7, 111.0, 20.0),
        Card("A6000", 47.5, 155.0, 20.0),
        Card("L40S", 44.4, 362.0, 20.0, 2),
        Card("A100", 39.4, 312.0, 230.0),
        Card("A100-80GB", 79.2, 312.0, 230.0),
        Card("H100", 79.2, 989.5, 400.0, 2),
        Card("H100-96GB", 95.0, 989.5, 400.0, 2),
        Card("H200", 140.4, 989.5, 400.0, 2),
        Card("B200", 178.0, 2250.0, 700.0, 2),
        Card("GB200", 184.0, 2500.0, 700.0, 2),
        Card("B300", 268.0, 2250.0, 700.0, 2),
    )
}
_SAME = {
    "a100-40": "A100",
    "a100-40gb": "A100",
    "a100-80": "A100-80GB",
    "h100-80": "H100",
    "h100-80gb": "H100",
    "h100-mega": "H100",
    "h100-96": "H100-96GB",
    "h200-141": "H200",
    "h200-141gb": "H200",
    "b200-180": "B200",
    "b200-180gb": "B200",
    "3090": "RTX3090",
    "4090": "RTX4090",
    "v100-16gb": "V100",
    "v100-32": "V100-32GB",
}
COMMON = ("A100", "A100-80GB", "H100", "H200", "B200")  # what is compared where nothing is named


def names() -> list[str]:
    """Return every known GPU by the name that offers use."""
    return list(_CARDS)


def find(name: str) -> Card:
    """The card of an accelerator's name, as offers and people write it. Raises KeyError."""
    short = name.strip().lower().removeprefix("nvidia-").replace("_", "-").replace(" ", "-")
    known = _SAME.get(short, short)
    for card in _CARDS.values():
        if card.name.lower() == known.lower():
            return card
    raise KeyError(name)
