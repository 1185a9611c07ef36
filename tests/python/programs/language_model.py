"""Trains a small language model of `transformers` with random weights, and lets it write.

language_model.py gpt2|llama
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from programs.program import report, train

STEPS = 10
WORDS = 512


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "gpt2":
        return GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=128, n_embd=96, n_layer=3, n_head=4))
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    return LlamaForCausalLM(config)


def run(model: Any, device: str) -> dict[str, Any]:
    text = torch.randint(0, WORDS, (STEPS, 8, 64), generator=torch.Generator().manual_seed(1))

    def forward(number: int) -> Any:
        words = text[number].to(device)
        return model(input_ids=words, labels=words)

    losses = train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), STEPS, forward)
    model.eval()
    prompt = text[0, :2, :8].to(device)
    settings = {"max_new_tokens": 24, "pad_token_id": 0, "attention_mask": torch.ones_like(prompt)}
    greedy = model.generate(prompt, do_sample=False, **settings)
    beams = model.generate(prompt, do_sample=False, num_beams=3, **settings)
    torch.manual_seed(3)
    sampled = model.generate(prompt, do_sample=True, top_k=50, **settings)
    written = {"greedy": greedy, "beams": beams, "sampled": sampled}
    return {"losses": losses, **{name: words.cpu().tolist() for name, words in written.items()}}


report(make(sys.argv[1]), run)
