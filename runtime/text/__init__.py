"""Text on both sides of the engines: tokenizer, chat template, incremental detokeniser, stop
strings."""

from runtime.text.chat import ChatTemplate
from runtime.text.detok import Detokenizer
from runtime.text.stop import StopText
from runtime.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "StopText", "Tokenizer"]
