"""A tiny chat model with random weights, built on the spot: `python tiny_llama.py DIR`.

What it says is noise, but everything around it is real: a Llama that Hugging Face and vLLM load
like any other, a tokenizer that any UTF-8 text survives, a chat template. Nothing is downloaded,
and the same arguments give the same files, byte for byte, under the same library versions.

Needs torch, transformers and tokenizers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, BOS, EOS = "<|pad|>", "<|begin|>", "<|end|>"
ROLES = ("system", "user", "assistant")

#: The tokenizer knows all 256 bytes and, by these sentences, the words of the prompts it will see.
SENTENCES = (
    "A careful adviser reads the whole question before answering any part of it.",
    "The company reported revenue of 1,250 million and a margin of 34.7% in 2024.",
    "Under the contract, the buyer may refuse delivery and claim damages from the seller.",
    "Please explain which risks the client should disclose, and why they matter in practice.",
    "The response states the correct discount rate and shows each step of the calculation.",
    "You are a grader. Decide whether the last answer meets the criterion, and explain briefly.",
    '```json\n{"explanation": "The answer says so.", "criteria_met": true}\n```',
    '```json\n{"explanation": "The answer does not say so.", "criteria_met": false}\n```',
    "根据合同约定，买方有权拒绝收货，并要求卖方赔偿损失。",
    "请结合案情，说明案件事实、法条依据、推理过程和结论。",
    "原告的诉讼请求有事实和法律依据，人民法院应当予以支持。",
)

#: Roles other than the three raise, so that a malformed conversation is noticed.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role: ' + message['role']) }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def build_tokenizer(context: int, vocabulary: int = 768) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on `SENTENCES` and give it the chat template."""
    role_marks = [f"<|{role}|>" for role in ROLES]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=[PAD, BOS, EOS, *role_marks],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        chat_template=CHAT_TEMPLATE,
        model_max_length=context,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, context: int, seed: int) -> LlamaForCausalLM:
    """A two-layer Llama in float32 whose weights depend on the seed alone."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,  # 32 wide each: vLLM's CPU attention serves no head of 16
        num_key_value_heads=4,
        max_position_embeddings=context,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def save(folder: Path, context: int = 32_768, seed: int = 0) -> None:
    """Write the model and its tokenizer into a folder, made if need be."""
    tokenizer = build_tokenizer(context)
    tokenizer.save_pretrained(folder)
    build_model(tokenizer, context, seed).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a tiny random-weight chat model.")
    parser.add_argument("folder", type=Path, help="where to write it")
    parser.add_argument("--context", type=int, default=32_768, help="tokens (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: %(default)s)")
    arguments = parser.parse_args()
    save(arguments.folder, arguments.context, arguments.seed)


if __name__ == "__main__":
    main()
