"""Tiny models for a real engine, of 1000 words, w6 to w999, and adapters for them: their files, made here.

Without weights the engine makes some up (`--load-format dummy`); with weights of random numbers a model has a
revision, as a real one has.
"""

from __future__ import annotations

import json
import math
import random
import struct
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VOCABULARY = 1_000
FIRST_WORD = 6
SPECIAL = ("<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>")
HIDDEN, HEADS, KEY_HEADS, HEAD, INNER, LAYERS = 128, 4, 2, 32, 256, 2
WINDOW = 64
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "vocab_size": VOCABULARY,
}
GEMMA: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "dtype": "float32",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 4,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": HEAD,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": HEAD,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    "tie_word_embeddings": True,
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "vocab_size": VOCABULARY,
}
"""Of its four layers two see the last 64 tokens only, so the engine keeps two groups of blocks."""
PROJECTIONS = {
    "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
    "self_attn.k_proj": (KEY_HEADS * HEAD, HIDDEN),
    "self_attn.v_proj": (KEY_HEADS * HEAD, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
"""Matrices of each Llama layer, rows by columns."""
NORMS = ("input_layernorm", "post_attention_layernorm")


def write_weights(folder: Path, seed: int) -> None:
    """Weights of random numbers for the Llama in this folder."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "lm_head.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.{name}.weight": shape for name, shape in PROJECTIONS.items()}
        shapes |= {f"{at}.{name}.weight": (HIDDEN,) for name in NORMS}
    _write_tensors(folder / "model.safetensors", shapes, seed)


def write_adapter(folder: Path, seed: int, *, rank: int = 8) -> Path:
    """A low-rank adapter of random numbers for two of the Llama's matrices; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        for name in ("self_attn.q_proj", "self_attn.v_proj"):
            rows, columns = PROJECTIONS[name]
            at = f"base_model.model.model.layers.{layer}.{name}"
            shapes |= {f"{at}.lora_A.weight": (rank, columns), f"{at}.lora_B.weight": (rows, rank)}
    _write_tensors(folder / "adapter_model.safetensors", shapes, seed, reach=0.5)
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none"}
    settings |= {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def _write_tensors(path: Path, shapes: Mapping[str, tuple[int, ...]], seed: int, reach: float = 0.05) -> None:
    """A safetensors file: the header's length, the header, the numbers."""
    numbers = random.Random(seed)
    header: dict[str, Any] = {}
    data = bytearray()
    for name, shape in shapes.items():
        count = math.prod(shape)
        values = array("f", (numbers.uniform(-reach, reach) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += values.tobytes()
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def write_model(folder: Path, config: Mapping[str, Any] = LLAMA) -> Path:
    """Writes the model's files without weights; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    words = {name: number for number, name in enumerate(SPECIAL)}
    words |= {f"w{number}": number for number in range(FIRST_WORD, VOCABULARY)}
    added = [
        {"id": number, "content": name, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for number, name in enumerate(SPECIAL)
    ]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "</s>",
        "model_max_length": 4096,
    }
    for name, document in (
        ("config.json", config),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", settings),
    ):
        (folder / name).write_text(json.dumps(document, indent=1))
    return folder
