"""What a request may hold and what a response holds: names, types and meanings.

The names are those that clients of Triton's TensorRT-LLM and vLLM backends send already; where
they have two for one thing, ``means`` leads from the one to the other. Shapes have no batch
dimension: a request is one text.
"""

from __future__ import annotations

from dataclasses import dataclass

TEXT, FLAG, WHOLE, SEED, NUMBER = (
    "TYPE_STRING",
    "TYPE_BOOL",
    "TYPE_INT32",
    "TYPE_UINT64",
    "TYPE_FP32",
)
COUNT = "TYPE_UINT32"


@dataclass(frozen=True, slots=True)
class Input:
    """An optional input of shape [1], or [-1] for a list."""

    name: str
    data_type: str
    what: str
    is_list: bool = False
    means: str | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """Of shape [1], or [-1] for a list."""

    name: str
    data_type: str
    what: str
    is_list: bool = False


INPUTS = (
    Input("text_input", TEXT, "the prompt; or else messages, or input_ids"),
    Input("chat", FLAG, "text_input is one user turn of the bundle's chat template (false)"),
    Input("messages", TEXT, 'a conversation: JSON, [{"role": "user", "content": "..."}]'),
    Input("input_ids", WHOLE, "the prompt's token ids", is_list=True),
    Input("stream", FLAG, "a response for each new piece of text, not one at the end (false)"),
    Input("max_tokens", WHOLE, "the longest answer (128)"),
    Input("min_tokens", WHOLE, "the shortest answer (0)"),
    Input("min_length", WHOLE, "the same", means="min_tokens"),
    Input("temperature", NUMBER, "0: the most likely token (0)"),
    Input("top_k", WHOLE, "0 or -1 keep every token (0)"),
    Input("top_p", NUMBER, "keep the likeliest tokens that hold this share (1)"),
    Input("min_p", NUMBER, "keep tokens this share as likely as the likeliest (0)"),
    Input("seed", SEED, "the same seed gives the same tokens (another one each time)"),
    Input("random_seed", SEED, "the same", means="seed"),
    Input("repetition_penalty", NUMBER, "above 1: tokens of prompt and text are less likely (1)"),
    Input("presence_penalty", NUMBER, "taken off the logit of the text's tokens (0)"),
    Input("frequency_penalty", NUMBER, "the same, once for each time (0)"),
    Input("stop_words", TEXT, "the text ends before the first of them", is_list=True),
    Input("stop", TEXT, "the same", is_list=True, means="stop_words"),
    Input("bad_words", TEXT, "their tokens do not follow one another", is_list=True),
    Input("stop_token_ids", WHOLE, "end the text, beside the model's own", is_list=True),
    Input("end_id", WHOLE, "one of them", means="stop_token_ids"),
    Input("ignore_eos", FLAG, "go on behind the model's end of sequence (false)"),
    Input("guided_decoding_guide_type", TEXT, "json, json_schema, regex, lark or choice"),
    Input("guided_decoding_guide", TEXT, "what the text has to be; for choice a JSON list"),
    Input("return_log_probs", FLAG, "the target's own log-probabilities (false)"),
    Input("cache_salt", TEXT, "prefixes are shared within one salt only"),
    Input("sampling_parameters", TEXT, "any of these as one JSON object, as vLLM's clients do"),
    Input("exclude_input_in_output", FLAG, "true: an answer is the new text alone, always"),
    Input("pad_id", WHOLE, "has no effect: nothing is padded"),
)

OUTPUTS = (
    Output("text_output", TEXT, "new text; streamed pieces joined are the whole"),
    Output("output_ids", WHOLE, "new tokens", is_list=True),
    Output("output_log_probs", NUMBER, "one for each of output_ids, if asked for", is_list=True),
    Output("num_output_tokens", COUNT, "new tokens, as vLLM counts them"),
    Output("cum_log_probs", NUMBER, "last response: their sum, if asked for"),
    Output("finish_reason", TEXT, "last response: stop, length, context or grammar"),
    Output("stop_reason", TEXT, "last response: the stop string or token id that ended it"),
    Output("num_input_tokens", COUNT, "last response: tokens of the prompt"),
    Output("num_cached_tokens", COUNT, "last response: of those, found in an earlier text's cache"),
    Output("acceptance_length", NUMBER, "last response: tokens a verification of the target"),
    Output("hit_rate", NUMBER, "last response: share of outcomes that were prepared, in ssd"),
    Output("mode", TEXT, "last response: how it was decoded: ar, sd, ssd or auto"),
)

BY_NAME = {each.name: each for each in INPUTS}
