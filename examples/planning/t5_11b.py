"""Trains T5-11B of transformers: a script as a user writes it, to be planned. Weights are made on cuda:0."""

import sys

import torch
from transformers import T5Config, T5ForConditionalGeneration

ROWS, TOKENS = int(sys.argv[1]), 512
config = T5Config(
    vocab_size=32128,
    d_model=1024,
    d_ff=65536,
    d_kv=128,
    num_layers=24,
    num_heads=128,
    dropout_rate=0.0,
    use_cache=False,
    decoder_start_token_id=0,
)
with torch.device("cuda"):
    model = T5ForConditionalGeneration(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(10):
    source = torch.randint(config.vocab_size, (ROWS, TOKENS)).to("cuda")
    target = torch.randint(config.vocab_size, (ROWS, TOKENS // 4)).to("cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=source, labels=target).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
