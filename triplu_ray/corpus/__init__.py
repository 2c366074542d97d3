"""Text as tokens: where a corpus comes from, its tokenizer and its fingerprint.

    source.py       which text a configuration means
    texts.py        the text of each split: files, a folder, the hub (hub.py), generated
    tokenizers.py   characters; tokens known by number alone. byte_pair.py: byte-level BPE
    shards.py       texts that come as tokens
    load.py         all of it together: `load_corpus`

The training text is a prefix of so many bytes, decoded as UTF-8 and cut at its last newline; the
other texts likewise. Vocabularies are drawn from the training text alone. Nothing that reads
characters imports `tokenizers` or `datasets`.
"""

from triplu_ray.corpus.load import Corpus, check_length, is_at_hand, load_corpus
from triplu_ray.corpus.source import DATA_VARIABLE, CorpusName, CorpusSource, TokenizerName
from triplu_ray.corpus.texts import find_texts
from triplu_ray.corpus.tokenizers import UNKNOWN, CharTokenizer, OpaqueTokens, Tokenizer, encode

__all__ = [
    "DATA_VARIABLE",
    "UNKNOWN",
    "CharTokenizer",
    "Corpus",
    "CorpusName",
    "CorpusSource",
    "OpaqueTokens",
    "Tokenizer",
    "TokenizerName",
    "check_length",
    "encode",
    "find_texts",
    "is_at_hand",
    "load_corpus",
]
