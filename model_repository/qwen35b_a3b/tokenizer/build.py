"""Builds the reference engine's tokenizer from `corpus/`: byte-level BPE with Qwen's special tokens.

Run it after changing the corpus, in an environment that has `tokenizers`, and commit what it writes::

    python model_repository/qwen35b_a3b/tokenizer/build.py

The same corpus gives the same bytes. The vocabulary starts with the 256 bytes, so any text round-trips; there is no
normaliser for the same reason (Qwen's own applies NFC). The ids are *not* Qwen's: a served checkpoint brings its own
tokenizer, and client and server must always use the same one.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent
VOCAB_SIZE = 4096
MAX_TOKEN_BYTES = 12
"""Keeps whole Chinese sentences of the corpus from becoming one token each: four characters at most."""
MAX_LENGTH = 32768

# Qwen's splitting rule: contractions, words with one leading character, single digits, punctuation, line ends, spaces.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Special: a decoder told to skip special tokens drops them."""
MARKUP_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Added but not special: they are part of the reply's text and must survive decoding."""


def corpus() -> list[str]:
    """The training texts, one a file, in a fixed order."""
    return [path.read_text(encoding="utf-8") for path in sorted((HERE / "corpus").glob("*.txt"))]


def train() -> Tokenizer:
    """A tokenizer trained on the corpus, with the added tokens after its vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=MAX_TOKEN_BYTES,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in MARKUP_TOKENS])
    return tokenizer


def config() -> dict[str, object]:
    """What `transformers.AutoTokenizer` needs to know beside `tokenizer.json`; the template lies in its own file."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_LENGTH,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
    }


def build(target: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` into `target`."""
    train().save(str(target / "tokenizer.json"), pretty=False)
    text = json.dumps(config(), indent=2, ensure_ascii=False) + "\n"
    (target / "tokenizer_config.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    build(HERE)
