"""Whether anything ends a completion, and whether it is what ends a turn of the chat template."""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from runtime.launch.preflight import Counted
from runtime.models.text import make_codec
from runtime.settings import Settings


def look_at_stops(settings: Settings, tokenizer: PreTrainedTokenizerBase, model_stops: tuple[int, ...]) -> Counted:
    """Refuse a run whose completions nothing ends; say where a turn of the chat template ends otherwise."""
    stops = {*model_stops, *settings.generation.stop_token_ids}
    if not stops:
        return Counted(
            refusals=(
                "nothing ends a completion: the tokenizer has no end-of-text token, and neither generation_config.json "
                "nor config.json has an eos_token_id, so that all would run on to generation.max_new_tokens; set "
                "generation.stop_token_ids",
            )
        )
    return Counted(notices=(*_ordinary(tokenizer, model_stops), *_other_turn_ends(settings, tokenizer, stops)))


def _ordinary(tokenizer: PreTrainedTokenizerBase, model_stops: tuple[int, ...]) -> Iterator[str]:
    """The model's stop tokens that occur in text: an eos_token_id that was left at its default, most likely."""
    marked = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    for token in model_stops:
        if token not in marked and token < len(tokenizer):
            yield (
                f"eos_token_id in generation_config.json or config.json names {token}, which is the ordinary token "
                f"{tokenizer.convert_ids_to_tokens(token)!r} of the tokenizer: a completion ends with the first of "
                "them; correct eos_token_id there if that is not meant"
            )


def _other_turn_ends(settings: Settings, tokenizer: PreTrainedTokenizerBase, stops: set[int]) -> Iterator[str]:
    if not settings.data.chat or tokenizer.chat_template is None:
        return
    try:
        after = make_codec(tokenizer, settings.data).after_an_answer()
    except TemplateError as error:
        yield f"the chat template does not render an answer ({error}), so it is not known what ends a turn"
        return
    if not after or not stops.isdisjoint(after):
        return
    marked = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    end = next((token for token in after if token in marked), after[0])
    yield (
        f"the chat template ends an answer with {tokenizer.convert_ids_to_tokens(end)!r} (token {end}), and the stop "
        f"tokens are {sorted(stops)}: a model that ends its turns so would run on to generation.max_new_tokens; "
        f"set generation.stop_token_ids to [{end}]"
    )
