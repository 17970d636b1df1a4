# Copyright 2026 The Vanilla Transformer authors. Licensed under the Apache License, Version 2.0.
"""Which floating-point numbers a device multiplies fast."""

import torch


def multiplies_bfloat16(device: str) -> bool:
    """Whether a device of this type ("cpu", "cuda" ...) has instructions for matrix products in bfloat16.

    Without them a product in bfloat16 takes ten times as long as one in float32, or more.
    """
    if device != "cpu":
        return device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))
