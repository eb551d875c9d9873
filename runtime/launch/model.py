"""The model directory that a run starts from, checked and prepared. Needs torch: it runs in another process."""

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from runtime.control.messages import Progress
from runtime.evaluation.sets import engine_limits, keys_of_limits
from runtime.files import give_usual_mode, writing
from runtime.generation.config import TorchEngineConfig
from runtime.generation.on_torch.self_check import check_supported
from runtime.launch.preflight import Findings, Prepared
from runtime.launch.prompt_lengths import count_prompts
from runtime.models.directory import ModelDirectoryProblem, UnsupportedModel
from runtime.models.loading import load_tokenizer
from runtime.models.renderer import SHARED, RenderingLost
from runtime.models.smollm2 import ModelPackageMissing, smollm2_directory
from runtime.models.text import NotRendered, make_codec, model_stop_tokens
from runtime.models.tiny import character_tokenizer, save_tiny_model, tiny_model, warm_up
from runtime.models.weights import model_without_memory
from runtime.settings import SMOLLM2, TINY, Settings
from runtime.tasks.base import Chat, DataFailure, TaskError
from runtime.tasks.config import DataConfig
from runtime.tasks.data import load_task
from runtime.training.model import check_context, decoder_layers, freeze_all_but_last_layers


def prepare(settings: Settings, directory: Path) -> Iterator[Prepared | Progress]:
    """Check the model and count the prompts, then prepare the model; the last element is the result."""
    found = yield from check_model_and_prompts(settings, directory)
    yield Prepared(found, None if found.refusals else prepare_model(settings, directory))


def check_model_and_prompts(settings: Settings, made: Path | None = None) -> Generator[Progress, None, Findings]:
    """Whether the model can be trained, what ends and begins its texts, and which prompts are too long or unknown.

    made: where the tiny model is if a run has begun with it; that goes on, whatever the tokenizer does not know.
    """
    try:
        source = source_of(settings)
        tokenizer = tokenizer_of(source)
        rendering = as_rendered(settings)
        checked = [Findings(refusals=model_refusals(settings, skeleton_of(settings, source)))]
        if refusals := template_refusals([rendering.data, *(each.data for each in settings.sets)], tokenizer):
            checked.append(Findings(refusals=refusals))
        else:
            checked += [
                check_stops(rendering, tokenizer, model_stop_tokens(tokenizer, source)),
                check_start(rendering, tokenizer),
                (yield from count_prompts(settings, tokenizer)),
            ]
    except (ModelPackageMissing, ModelDirectoryProblem, UnsupportedModel, RenderingLost) as refused:
        return Findings(refusals=(str(refused),))
    finally:
        SHARED.close()
    reasons = [refusal for found in checked for refusal in found.refusals]
    notices = [notice for found in checked for notice in found.notices]
    has_begun = made is not None and (made / "config.json").exists()
    is_new_tiny = settings.policy.model_name == TINY and not has_begun
    (reasons if is_new_tiny else notices).extend(text for found in checked for text in found.unknown)
    return Findings(tuple(dict.fromkeys(reasons)), tuple(notices))


def template_refusals(datas: Iterable[DataConfig], tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Why chat templates are refused: each is tried once, before it is used for prompts, of which each has a deadline.

    A missing one is left to the counting of prompts.
    """
    refusals: dict[tuple[str | None, float], str | None] = {}
    for data in datas:
        try:
            codec = make_codec(tokenizer, data) if data.chat else None
        except TaskError:
            continue
        if codec is not None and (key := (codec.chat_template, codec.chat_template_timeout_s)) not in refusals:
            refusals[key] = codec.template_refusal()
    return tuple(refusal for refusal in refusals.values() if refusal is not None)


def as_rendered(settings: Settings) -> Settings:
    """The settings, with `data.chat: true` if prompts are chat messages, which go through the chat template anyway."""
    try:
        opening = load_task(settings.data, "training").opening(0)
    except (TaskError, DataFailure):  # counting the prompts reports it
        return settings
    if not isinstance(opening, Chat):
        return settings
    return settings.model_copy(update={"data": settings.data.model_copy(update={"chat": True})})


def source_of(settings: Settings) -> Path | None:
    """The directory that `policy.model_name` names; None for the tiny model. Raises ModelPackageMissing."""
    name = settings.policy.model_name
    if name == TINY:
        return None
    return smollm2_directory() if name == SMOLLM2 else Path(name).resolve()


def skeleton_of(settings: Settings, source: Path | None) -> PreTrainedModel:
    """The model without its weights. Raises UnsupportedModel."""
    if source is None:
        return tiny_model(character_tokenizer(), settings.policy.tiny, settings.seed)
    return model_without_memory(source)


def tokenizer_of(source: Path | None) -> PreTrainedTokenizerBase:
    """The tokenizer of the model in a directory, or of the tiny one. Raises ModelDirectoryProblem."""
    if source is None:
        return character_tokenizer()
    return load_tokenizer(source)


def prepare_model(settings: Settings, directory: Path) -> Path:
    """The directory of the model that `policy.model_name` names.

    The tiny model is made and warmed up aside and renamed to `directory`: one that exists is whole, and is used.
    Raises FileNotWritten.
    """
    source = source_of(settings)
    if source is not None:
        return source
    if not (directory / "config.json").exists():
        with writing(directory, "the run has not begun", also=(SafetensorError,)):
            directory.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as aside:
                made = Path(aside) / directory.name
                _make_tiny_model(settings, made)
                made.replace(directory)
    return directory.resolve()


def _make_tiny_model(settings: Settings, directory: Path) -> None:
    save_tiny_model(directory, settings.policy.tiny, settings.seed)
    if settings.warmup.steps:
        model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        warm_up(model, tokenizer, load_task(settings.data, "training"), settings.warmup, seed=settings.seed)
        model.save_pretrained(directory)
        give_usual_mode(directory / "model.safetensors")


def model_refusals(settings: Settings, model: PreTrainedModel) -> tuple[str, ...]:
    """Why a model cannot be trained or sampled from. `model` may have no weights; its layers get frozen."""
    policy, generation = settings.policy, engine_limits(settings.generation, settings.sets)
    checks: list[Callable[[], object]] = [partial(check_context, model, policy.max_total_sequence_length)]
    if policy.train_last_layers is not None:
        checks.append(partial(freeze_all_but_last_layers, model, policy.train_last_layers))
    elif policy.gradient_checkpointing or settings.cluster.num_trainer_ranks > 1:
        checks.append(partial(decoder_layers, model))
    if isinstance(generation.engine, TorchEngineConfig):
        tokens = generation.max_prompt_tokens + generation.max_new_tokens
        checks.append(partial(check_supported, model, tokens, keys_of_limits(settings.generation, settings.sets)))
    refusals = []
    for check in checks:
        try:
            check()
        except ValueError as error:
            refusals.append(str(error))
    return tuple(refusals)


def check_stops(settings: Settings, tokenizer: PreTrainedTokenizerBase, model_stops: tuple[int, ...]) -> Findings:
    """Refuse a run without stop tokens; warn if the chat template ends a turn with another token."""
    stops = {*model_stops, *settings.generation.stop_token_ids}
    if not stops:
        return Findings(
            refusals=(
                "nothing ends a completion: the tokenizer has no end-of-text token, and neither generation_config.json "
                "nor config.json has an eos_token_id, so that all would run on to generation.max_new_tokens; set "
                "generation.stop_token_ids",
            )
        )
    return Findings(notices=(*_ordinary(tokenizer, model_stops), *_other_turn_ends(settings, tokenizer, stops)))


def check_start(settings: Settings, tokenizer: PreTrainedTokenizerBase) -> Findings:
    """Tell of prompts without the token that the tokenizer begins texts with: the model was trained with it."""
    bos = tokenizer.bos_token_id
    if bos is None or tokenizer.encode("a")[:1] != [bos]:
        return Findings()
    try:
        begins = make_codec(tokenizer, settings.data).encode_prompt("a")[:1].tolist()
    except (TaskError, DataFailure):  # what is wrong is told where prompts are counted
        return Findings()
    if begins == [bos]:
        return Findings()
    mends = (
        "begin the chat template with {{ bos_token }}, in chat_template.jinja or tokenizer_config.json of the model's "
        "directory"
        if settings.data.chat
        else f"set data.prompt_template to {tokenizer.bos_token + settings.data.prompt_template!r}"
    )
    told = (
        f"the tokenizer begins a text with {tokenizer.bos_token!r} (token {bos}), and prompts do not begin with it, so "
        f"that the model may answer worse than it could: {mends}"
    )
    return Findings(notices=(told,))


def _ordinary(tokenizer: PreTrainedTokenizerBase, model_stops: tuple[int, ...]) -> Iterator[str]:
    """Stop tokens of the model that occur in text: most likely an eos_token_id that was left at its default."""
    marked = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    for token in model_stops:
        if token not in marked and token < len(tokenizer):
            yield (
                f"eos_token_id in generation_config.json or config.json names {token}, which is the ordinary token "
                f"{tokenizer.convert_ids_to_tokens(token)!r} of the tokenizer: a completion ends with the first of "
                "them; correct eos_token_id there if that is not intended"
            )


def _other_turn_ends(settings: Settings, tokenizer: PreTrainedTokenizerBase, stops: set[int]) -> Iterator[str]:
    if not settings.data.chat:
        return
    try:
        after = make_codec(tokenizer, settings.data).after_an_answer()
    except TaskError:
        return  # counting the prompts reports it
    except NotRendered as error:
        yield f"the chat template does not render an answer ({error.happened}), so it is not known what ends a turn"
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
