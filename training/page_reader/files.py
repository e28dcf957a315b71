"""Tokenizer, chat template, image processor and configuration of the page reader, in Hugging Face files.

The vocabulary is the 256 bytes, every word of the page world with and without its leading space, and Qwen's
special tokens. A word outside the vocabulary falls back to its bytes, so any text tokenizes and round-trips.
"""

import json
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2VLImageProcessorPil,
)

from demo.pages import PAGE_PX
from demo.questions import DEFAULT_SYSTEM, vocabulary

SPECIAL_TOKENS: Final = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
PATCH: Final = 8
MERGE: Final = 2
GRID_PATCHES: Final = PAGE_PX // PATCH  # patches per side of a page
PAGE_TOKENS: Final = (GRID_PATCHES // MERGE) ** 2  # merged visual tokens of a page

# A word is letters and "=" with at most one leading space; "black=ruby" is one word.
_WORDS: Final = r" ?[\p{L}=]+| ?[^\s\p{L}=]+|\s+(?!\S)|\s+"

# Newlines stand inside expressions because the template engine drops one that follows a block tag.
# Tools, calls and results as the Qwen family writes them, shorter. Training knew none of them.
CHAT_TEMPLATE: Final = (
    "{%- macro said(message) -%}"
    "{%- if message.content is string -%}{{ message.content }}"
    "{%- else -%}"
    "{%- for part in message.content -%}"
    "{%- if part.type in ('image', 'image_url') -%}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part.type == 'text' -%}{{ part.text }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{%- endmacro -%}"
    "{%- macro listed() -%}"
    "{%- if tools -%}"
    "{{ '\\n\\n<tools>' }}"
    "{%- for tool in tools -%}{{ '\\n' + (tool | tojson) }}{%- endfor -%}"
    '{{ \'\\n</tools>\\nCall one so:\\n<tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call>\' }}'
    "{%- endif -%}"
    "{%- endmacro -%}"
    "{%- if messages[0].role != 'system' -%}"
    "{{ '<|im_start|>system\\n" + DEFAULT_SYSTEM + "' + listed() + '<|im_end|>\\n' }}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'tool' -%}"
    "{%- if messages[loop.index0 - 1].role != 'tool' -%}{{ '<|im_start|>user' }}{%- endif -%}"
    "{{ '\\n<tool_response>\\n' + said(message) + '\\n</tool_response>' }}"
    "{%- if loop.last or loop.nextitem.role != 'tool' -%}{{ '<|im_end|>\\n' }}{%- endif -%}"
    "{%- else -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + said(message) }}"
    "{%- if loop.first and message.role == 'system' -%}{{ listed() }}{%- endif -%}"
    "{%- for call in message.tool_calls or [] -%}"
    "{{ '\\n' if message.content or not loop.first }}"
    '{{ \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ (call.function.arguments | tojson) + '}\\n</tool_call>' }}"
    "{%- endfor -%}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level tokenizer whose words are single tokens; no merges, words are looked up whole."""
    tokens = list(SPECIAL_TOKENS) + sorted(pre_tokenizers.ByteLevel.alphabet())
    for word in vocabulary():
        tokens += [form for form in (word, f"Ġ{word}") if len(form) > 1]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_image_processor() -> Qwen2VLImageProcessorPil:
    """Processor that turns a 96x96 page into 144 patches (36 merged tokens) without resizing it."""
    return Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        temporal_patch_size=2,
        merge_size=MERGE,
        size={"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": PAGE_PX**2},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )


def build_config(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLConfig:
    """The architecture: 6 decoder layers of width 128 (4 heads, 2 of them KV), one vision block of width 64."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}
    hidden, heads = 128, 4
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": -(-len(tokenizer) // 16) * 16,
            "hidden_size": hidden,
            "intermediate_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": heads,
            "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
            "bos_token_id": ids["<|im_start|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 1,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "in_channels": 3,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            # The one block sees the whole page, so windows never cut anything.
            "window_size": 256,
            "out_hidden_size": hidden,
            "fullatt_block_indexes": [0],
            "tokens_per_second": 2,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )


def write_files(folder: Path) -> None:
    """Write everything but the weights: configuration, generation defaults, tokenizer, image processor."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    # The name that every release of transformers and other servers know; current ones write a newer alias.
    settings = folder / "tokenizer_config.json"
    named = json.loads(settings.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.write_text(json.dumps(named, indent=2) + "\n")
    build_image_processor().save_pretrained(folder)
    config = build_config(tokenizer)
    config.architectures = ["Qwen2_5_VLForConditionalGeneration"]
    config.save_pretrained(folder)
    text = config.text_config
    GenerationConfig(
        do_sample=False,
        bos_token_id=text.bos_token_id,
        eos_token_id=text.eos_token_id,
        pad_token_id=text.pad_token_id,
        max_new_tokens=64,
    ).save_pretrained(folder)
