"""Which text a run reads: a part of its configuration."""

from typing import Literal, NamedTuple

CorpusName = Literal[
    "tinystories_lite", "tinystories", "text", "wikitext2", "arithmetic_lite", "gpt2_shards"
]
TokenizerName = Literal["char", "bbpe", "gpt2"]

DATA_VARIABLE = "TRIPLU_RAY_DATA"
"""Of the environment: a folder whose texts take the place of the hub's."""
GPT2_VOCAB_SIZE = 50_257
"""Of GPT-2's tokenizer; models of the shards' source pad it to 50,304."""
DEFAULT_BBPE_VOCAB_SIZE = 512


class CorpusSource(NamedTuple):
    """The part of a configuration that says which text a run reads.

    Sizes are those of prefixes, None means all of a text. There is a held-out text, which is
    evaluated once at the end, with corpus wikitext2, beside a `heldout_file`, or where
    `heldout_bytes` is given.
    """

    corpus: CorpusName
    train_bytes: int | None
    validation_bytes: int | None
    train_file: str | None = None
    validation_file: str | None = None
    tokenizer: TokenizerName = "char"
    tokenizer_vocab_size: int = DEFAULT_BBPE_VOCAB_SIZE
    heldout_bytes: int | None = None
    heldout_file: str | None = None

    @property
    def sizes(self) -> dict[str, int | None]:
        """Bytes of each split, as given."""
        return {
            "train": self.train_bytes,
            "validation": self.validation_bytes,
            "heldout": self.heldout_bytes,
        }

    @property
    def files(self) -> dict[str, str | None]:
        """The file of each split, as given."""
        return {
            "train": self.train_file,
            "validation": self.validation_file,
            "heldout": self.heldout_file,
        }

    @property
    def vocab_size(self) -> int | None:
        """What is known of the vocabulary before any text is there; None of characters."""
        if self.tokenizer == "bbpe":
            return self.tokenizer_vocab_size
        return GPT2_VOCAB_SIZE if self.tokenizer == "gpt2" else None

    @property
    def assumed_bytes_per_token(self) -> float | None:
        """For drafts of plans: what 512 entries come to on TinyStories, 999,932 / 430,031."""
        return 2.33 if self.tokenizer == "bbpe" else None

    def check(self) -> None:
        """Raise ValueError for keys that do not go together."""
        shards = self.corpus == "gpt2_shards"
        if shards != (self.tokenizer == "gpt2"):
            expected = "gpt2" if shards else "char or bbpe"
            raise ValueError(
                f"tokenizer: expected {expected} with corpus: {self.corpus}, got {self.tokenizer}"
            )
        if self.tokenizer != "bbpe" and self.tokenizer_vocab_size != DEFAULT_BBPE_VOCAB_SIZE:
            raise ValueError(
                f"tokenizer_vocab_size: expected tokenizer: bbpe beside it, got {self.tokenizer}"
            )
        for split, file in self.files.items():
            readers = ("text",) if split == "heldout" else ("text", "gpt2_shards")
            if file is not None and self.corpus not in readers:
                raise ValueError(
                    f"{split}_file: expected corpus: {' or '.join(readers)} beside it, "
                    f"got {self.corpus}"
                )
        if self.heldout_bytes is None:
            return
        if shards:
            raise ValueError(
                f"heldout_bytes: expected none with corpus: {self.corpus}, "
                f"got {self.heldout_bytes:,}"
            )
        if self.corpus == "text" and self.heldout_file is None:
            raise ValueError("heldout_bytes: expected heldout_file beside it, got none")
        if self.corpus == "tinystories" and self.validation_bytes is None:
            raise ValueError(
                "heldout_bytes: expected validation_bytes beside it, as the held-out text begins "
                "where the validation text ends; got none"
            )
