"""The `data:` block: the task, how much of it is used, and which part is held out."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fsm.config.plain import LONGEST_S, Options
from fsm.config.strict import Strict
from runtime.tasks.rewards import VERDICT_TIMEOUT, RatedByFunctions

_RENDERING = {
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "conversations", "documents",
    "messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "self", "tokenize", "tools",
    "truncation",
}  # fmt: skip
"""What rendering a chat template needs besides its variables."""
DRAWN_PROMPTS = 65_536
"""Prompts of an epoch of a task that draws them, if `data.num_prompts` is null."""


class _Characters(Strict):
    min_length: int = Field(default=3, ge=1, description="Fewest characters to reorder.")
    max_length: int = Field(
        default=8, ge=1, description="Most characters to reorder; shorter texts are padded to it with blanks in front."
    )
    reward: Literal["exact", "partial"] = Field(
        default="exact", description="exact: 1 for the right answer, else 0; partial: the share of right characters."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        """`min_length` above `max_length`."""
        if self.min_length > self.max_length:
            raise ValueError(
                f"min_length {self.min_length} is above max_length {self.max_length}: swap them, or make them equal"
            )
        return self


class ReverseTaskConfig(_Characters):
    """Reverse a few letters: `hello>` becomes `olleh`."""

    name: Literal["reverse"] = Field(default="reverse", description="Reverse a few letters.")
    letters: int = Field(default=26, ge=2, le=26, description="How many letters occur, from a on.")


class SortTaskConfig(_Characters):
    """Sort a few digits: `3141>` becomes `1134`."""

    name: Literal["sort"] = Field(default="sort", description="Sort a few digits.")


class ReasoningGymTaskConfig(Strict):
    """Any procedural task of reasoning-gym, rated by its own scorer."""

    name: Literal["reasoning_gym"] = Field(default="reasoning_gym", description="A task of reasoning-gym.")
    dataset: str = Field(min_length=1, description="Name of the dataset in reasoning-gym, such as chain_sum.")
    options: Options = Field(
        default_factory=dict, description="The dataset's options; seed and size come from the data block."
    )
    answer_pattern: str | None = Field(
        default=None,
        description="Regular expression with one group; its last match in a completion is rated. null: all of it is.",
    )
    correct_at: float = Field(default=0.99, description="Lowest score that counts as correct.")
    reward: Literal["binary", "score"] = Field(
        default="binary", description="binary: 1 for correct, else 0; score: the scorer's score."
    )
    junk_at_most: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        description="Scores up to this become a reward of 0: some scorers give a little for any text.",
    )
    verdict_timeout_s: float = VERDICT_TIMEOUT


class ColumnsConfig(Strict):
    """Names of columns. `a.b` is the key b of the objects in column a."""

    prompt: str | None = Field(
        default=None,
        min_length=1,
        description="The prompt: a text, or a list of chat messages. null: prompt, or messages if there is none.",
    )
    answer: str | None = Field(
        default="answer",
        min_length=1,
        description="The answer; numbers, lists and objects become JSON. null: there are no answers.",
    )
    tools: str | None = Field(
        default=None,
        min_length=1,
        description="Tools for the chat template, as a list or its JSON. null: tools, if there is such a column.",
    )


class RowsTaskConfig(RatedByFunctions):
    """The keys that all tasks share whose prompts are rows of files."""

    columns: ColumnsConfig = Field(default=ColumnsConfig(), description="Which columns are used.")
    cut_answers: bool = Field(
        default=False,
        description="Cut an assistant's message from the end of prompts, which are refused otherwise. It is the answer "
        "if columns.answer is null.",
    )


class JsonlTaskConfig(RowsTaskConfig):
    """Lines of `{"prompt": …, "answer": …}` and functions that rate a completion."""

    name: Literal["jsonl"] = Field(default="jsonl", description="A file of prompts and answers.")
    path: Path = Field(strict=False, description="The file, one JSON object with prompt and answer a line.")
    validation_path: Path | None = Field(
        default=None, strict=False, description="File of held-out lines; null: a fraction of path is held out."
    )


_Paths = str | Annotated[tuple[str, ...], Field(strict=False, min_length=1)]


class DatasetTaskConfig(RowsTaskConfig):
    """Rows of parquet, Arrow, JSON lines, JSON or CSV, and functions that rate a completion."""

    name: Literal["dataset"] = Field(default="dataset", description="Files, or a dataset of Hugging Face datasets.")
    path: _Paths = Field(
        description="A file, a glob, a folder, or a list of them (.parquet, .arrow, .jsonl, .json, .csv, .tsv); a "
        "folder written by Dataset.save_to_disk; or a name on the Hugging Face hub.",
    )
    split: str | None = Field(
        default=None,
        min_length=1,
        description="The split, which the names of files or folders have, as in test-00000.parquet, or that a saved "
        "dataset has. null: train, if there are splits.",
    )
    subset: str | None = Field(default=None, min_length=1, description="Configuration of a dataset of the hub.")
    validation_path: _Paths | None = Field(
        default=None, description="Held-out rows; null: those of validation_split, or a fraction of path."
    )
    validation_split: str | None = Field(
        default=None, min_length=1, description="Split of the held-out rows, of validation_path or else of path."
    )


class CustomTaskConfig(Strict):
    """An environment of yours: it opens episodes, answers the policy's turns, and rates rollouts."""

    name: Literal["custom"] = Field(default="custom", description="An environment of yours, or of an adapter.")
    target: str = Field(min_length=1, description="module:Class, a runtime.tasks.environments.interface.Environment.")
    options: Options = Field(default_factory=dict, description="Keyword arguments of the class.")
    timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=LONGEST_S,
        description=(
            "Deadline of each call of an episode (open, respond, verdict, close), in seconds. Making the environment "
            "has the same deadline, at least 60 s. A call that misses it is a data failure of its prompt."
        ),
    )
    processes: int = Field(
        default=2, ge=1, description="Processes of each generation worker that keep episodes, many each."
    )
    memory_mib: int = Field(
        default=4096,
        ge=64,
        description="Memory of such a process, in MiB. An allocation far beyond it fails with a MemoryError.",
    )


TaskConfig = Annotated[
    ReverseTaskConfig
    | SortTaskConfig
    | ReasoningGymTaskConfig
    | JsonlTaskConfig
    | DatasetTaskConfig
    | CustomTaskConfig,
    Field(discriminator="name"),
]


class DelayConfig(Strict):
    """Delay every verdict of training by a log-normal time, so that some take far longer than most.

    For benchmarks of overlap. A verdict's delay depends on seed, prompt and sibling alone.
    """

    median_s: float = Field(default=0.3, gt=0, le=LONGEST_S, description="Median delay of a verdict, in seconds.")
    sigma: float = Field(
        default=0.6, ge=0, description="Standard deviation of the delay's logarithm; 0 makes all delays equal."
    )
    min_s: float = Field(default=0.0, ge=0, le=LONGEST_S, description="Shortest delay, in seconds.")
    max_s: float = Field(default=1.0, gt=0, le=LONGEST_S, description="Longest delay, in seconds.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        """A `median_s` that is not between `min_s` and `max_s`."""
        if not self.min_s <= self.median_s <= self.max_s:
            raise ValueError(f"min_s {self.min_s}, median_s {self.median_s} and max_s {self.max_s}: put them in order")
        return self


class DataConfig(Strict):
    """Prompts for training and validation."""

    task: TaskConfig = Field(default=ReverseTaskConfig(), description="The task and its options.")
    num_prompts: int | None = Field(
        default=None,
        ge=1,
        description=(
            "Prompts of an epoch. For a task that draws them: how many (null: 65536). For a file: how many of its "
            "first lines are used (null: all), before any is held out."
        ),
    )
    seed: int = Field(default=0, ge=0, description="Seed of the prompts that are drawn and of their order.")
    shuffle: bool = Field(default=False, description="Take prompts in another order each epoch; useful for files.")
    validation_size: int = Field(default=256, ge=0, description="Held-out prompts to measure accuracy on.")
    held_out_fraction: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description=(
            "Share of all possible prompts that is never trained on. A hash of its text decides for each prompt, so "
            "that the share of a small file's lines is only near this. No line of a file is held out if "
            "validation_size is 0."
        ),
    )
    prompt_template: str = Field(default="{prompt}", description="Text around the task's prompt.")
    chat: bool = Field(
        default=False, description="Put the prompt through the tokenizer's chat template, as the user's message."
    )
    system_prompt: str | None = Field(default=None, description="System message of the chat; null: the template's own.")
    chat_template: Path | None = Field(
        default=None, strict=False, description="A Jinja file, used as the chat template; null: the tokenizer's."
    )
    chat_template_kwargs: Options = Field(
        default_factory=dict, description="Variables for the chat template, such as enable_thinking: false."
    )
    chat_template_timeout_s: float = Field(
        default=10.0,
        gt=0,
        le=LONGEST_S,
        description="Deadline for rendering a prompt, in processor time; a template that loops is stopped then.",
    )
    max_turns: int = Field(default=8, ge=1, description="Most turns of the policy, in tasks of several turns.")
    delay: DelayConfig | None = Field(
        default=None, description="Delay of every verdict in training, for benchmarks; null: none."
    )

    @property
    def drawn_prompts(self) -> int:
        """Prompts of an epoch, for a task that draws them."""
        return DRAWN_PROMPTS if self.num_prompts is None else self.num_prompts

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """A `prompt_template` without `{prompt}`; chat keys without `chat: true`; `delay` of an environment."""
        if "{prompt}" not in self.prompt_template:
            raise ValueError(
                f"prompt_template {self.prompt_template!r} has no {{prompt}}: every prompt would be the same"
            )
        if self.delay is not None and isinstance(self.task, CustomTaskConfig):
            raise ValueError("delay holds verdicts of reward workers back, and an environment rates its own rollouts")
        if self.system_prompt is not None and not self.chat:
            raise ValueError("system_prompt needs chat: true; without a chat template put it into prompt_template")
        for key, given in (("chat_template", self.chat_template), ("chat_template_kwargs", self.chat_template_kwargs)):
            if given and not self.chat:
                raise ValueError(f"{key} needs chat: true, which puts texts through the chat template too")
        if taken := _RENDERING & self.chat_template_kwargs.keys():
            raise ValueError(
                f"chat_template_kwargs has {', '.join(sorted(taken))}, which a run sets itself; leave it out"
            )
        return self
