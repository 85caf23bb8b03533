"""Writes two tiny Llamas with random weights, model-a and model-b, for vLLM's CPU build.

usage: make_models.py DIR

Nothing is downloaded. The tokenizer knows the 256 bytes and nothing else, one token each, so any text can be asked and
any answer decoded; the weights follow from a fixed seed, so that two machines get the same models.
"""

import pathlib
import sys

import tokenizers
import torch
import transformers

# Name: width, layers.
MODELS = {"model-a": (256, 4), "model-b": (128, 2)}
SPECIAL = ("<begin>", "<end>")
TEMPLATE = "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}[assistant] "


def byte_tokenizer():
    """One token for each byte, after the special ones."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *alphabet])}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=SPECIAL[0], eos_token=SPECIAL[1], chat_template=TEMPLATE
    )


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    tokenizer = byte_tokenizer()
    for seed, (name, (width, layers)) in enumerate(MODELS.items()):
        folder = pathlib.Path(sys.argv[1]) / name
        torch.manual_seed(seed)
        shape = transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=width * 2,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=4096,
            bos_token_id=0,
            eos_token_id=1,
        )
        transformers.LlamaForCausalLM(shape).to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        print(folder)


if __name__ == "__main__":
    main()
