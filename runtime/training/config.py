"""The `policy`, `loss_fn` and `optimizer` blocks, with NeMo-RL's names for the keys that it has too."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fsm.config.strict import Strict


class PolicyConfig(Strict):
    """The model that is trained, and how its batches are computed."""

    model_name: str = Field(
        min_length=1, description="Directory of a Hugging Face causal LM (config.json and safetensors)."
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="Type of the arithmetic; weights, gradients and moments stay float32."
    )
    train_global_batch_size: int | None = Field(
        default=None, ge=1, description="Rollouts a step trains on, checked against the step size; null: not checked."
    )
    max_total_sequence_length: int = Field(
        default=512, ge=2, description="Longest rollout accepted for training, in tokens, prompt included."
    )
    train_microbatch_tokens: int = Field(
        default=4096, ge=2, description="Most tokens of a microbatch, padding included; bounds activation memory."
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Recompute each layer's activations in the backward pass: less memory, more time."
    )
    train_last_layers: int | None = Field(
        default=None, ge=1, description="Train only the parameters in this many last decoder layers; null: all."
    )
    threads: int = Field(
        default=1, ge=1, description="Threads of torch. More than 1 slows small models on a busy machine."
    )

    @model_validator(mode="after")
    def _longest_rollout_fits_a_microbatch(self) -> "PolicyConfig":
        """`train_microbatch_tokens` below `max_total_sequence_length`: a rollout is never split."""
        if self.train_microbatch_tokens < self.max_total_sequence_length:
            raise ValueError(
                f"train_microbatch_tokens is {self.train_microbatch_tokens}, but a rollout may have "
                f"max_total_sequence_length = {self.max_total_sequence_length} tokens and is never split: "
                f"set train_microbatch_tokens to at least {self.max_total_sequence_length}"
            )
        return self


class RewardShapingConfig(Strict):
    """Soft overlong punishment, added to the reward (DAPO, arXiv:2503.14476, equation 13)."""

    max_response_length: int = Field(ge=1, description="Sampled tokens at which the punishment is complete.")
    overlong_buffer_length: int = Field(
        ge=1, description="The punishment grows linearly over this many tokens up to max_response_length."
    )
    overlong_buffer_penalty: float = Field(default=1.0, gt=0, description="The complete punishment.")

    @model_validator(mode="after")
    def _buffer_within_the_response(self) -> "RewardShapingConfig":
        """`overlong_buffer_length` above `max_response_length`."""
        if self.overlong_buffer_length > self.max_response_length:
            raise ValueError(
                f"overlong_buffer_length is {self.overlong_buffer_length}, longer than max_response_length = "
                f"{self.max_response_length}: set it to at most {self.max_response_length}"
            )
        return self


Aggregation = Literal["token", "sequence", "dr_grpo"]
KlType = Literal["k1", "k2", "k3"]


class LossConfig(Strict):
    """The policy loss. `runtime.training.loss` says how the fields act together."""

    normalize_rewards: bool = Field(
        default=True,
        description="Divide an advantage by the standard deviation of the rewards that its baseline is the mean of, "
        "unless that is 0 (GRPO); false: do not divide (Dr. GRPO).",
    )
    use_leave_one_out_baseline: bool = Field(
        default=False, description="Baseline of a rollout: the mean reward of its siblings without itself (RLOO)."
    )
    ratio_clip_min: float = Field(
        default=0.2, ge=0, le=1, description="Clips the ratio below 1 − ratio_clip_min if the advantage is negative."
    )
    ratio_clip_max: float = Field(
        default=0.28, ge=0, description="Clips the ratio above 1 + ratio_clip_max if the advantage is positive (DAPO)."
    )
    ratio_clip_c: float | None = Field(
        default=None, gt=1, description="Dual clip: bound of the ratio if the advantage is negative; null: none."
    )
    old_policy: Literal["recomputed", "generation"] = Field(
        default="recomputed",
        description="The policy in the denominator of the clipped ratio. recomputed: the trainer's own at the start of "
        "the step, so that the ratio is 1 and the clip never binds. generation: the one that sampled.",
    )
    use_importance_sampling_correction: bool = Field(
        default=True,
        description="Correct for sampling under other weights than those trained: by a truncated weight under "
        "old_policy recomputed, by the clipped ratio itself under old_policy generation.",
    )
    truncated_importance_sampling_ratio: float | None = Field(
        default=2.0,
        gt=0,
        description="Upper bound of a token's importance weight under old_policy recomputed; null: none.",
    )
    aggregation: Aggregation = Field(
        default="token",
        description="Divisor of the summed loss. token: the step's sampled tokens (DAPO). sequence: each rollout by "
        "its tokens, then by the rollouts (GRPO). dr_grpo: rollouts × dr_grpo_length. NeMo-RL's token_level_loss true "
        "and false are read as token and sequence.",
    )
    dr_grpo_length: int | None = Field(
        default=None, ge=1, description="Constant length of dr_grpo; null: policy.max_total_sequence_length."
    )
    reference_policy_kl_penalty: float = Field(
        default=0.0,
        ge=0,
        description="Weight of the KL divergence from the initial model; above 0 that model is kept in memory.",
    )
    reference_policy_kl_type: KlType = Field(
        default="k3", description="Estimator of that divergence from the sampled tokens, as Schulman names them."
    )
    use_on_policy_kl_approximation: bool = Field(
        default=True,
        description="Weight that divergence by current / generating policy, which corrects its gradient for tokens "
        "that earlier weights sampled; false: as if the current weights had sampled them.",
    )
    kl_input_clamp_value: float | None = Field(
        default=20.0,
        gt=0,
        description="Clamp the log-ratio of policy and reference to ± this, in nats; a token beyond it has no KL "
        "gradient. null: no clamp.",
    )
    kl_output_clamp_value: float | None = Field(
        default=10.0,
        gt=0,
        description="Clamp the weighted divergence of a token to ± this, in nats; a token beyond it has no KL "
        "gradient. null: no clamp.",
    )
    entropy_coefficient: float = Field(default=0.0, ge=0, description="Weight of the entropy bonus.")
    overlong_filtering: bool = Field(
        default=False, description="Leave rollouts cut off by the length limit out of the loss, but in the baseline."
    )
    stop_after_steps_without_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Stop the run after this many consecutive steps in which overlong_filtering left no token to train "
        "on, so that the weights stayed; null: only warn.",
    )
    reward_shaping: "RewardShapingConfig | None" = Field(
        default=None, description="Soft punishment of long rollouts; null: none."
    )

    @model_validator(mode="before")
    @classmethod
    def _read_token_level_loss(cls, data: object) -> object:
        if not isinstance(data, dict) or "token_level_loss" not in data:
            return data
        given = dict(data)
        token_level = given.pop("token_level_loss")
        if "aggregation" in given or not isinstance(token_level, bool):
            raise ValueError(
                f"token_level_loss is {token_level!r} and aggregation {given.get('aggregation')!r}: "
                "set aggregation alone, to token, sequence or dr_grpo"
            )
        return {**given, "aggregation": "token" if token_level else "sequence"}

    @model_validator(mode="after")
    def _generation_ratio_is_the_correction(self) -> "LossConfig":
        """`old_policy: generation` without `use_importance_sampling_correction`, which its ratio is."""
        if self.old_policy == "generation" and not self.use_importance_sampling_correction:
            raise ValueError(
                "old_policy is generation, whose ratio is the importance-sampling correction, but "
                "use_importance_sampling_correction is false: set it to true, or old_policy to recomputed"
            )
        return self


class ConstantSchedule(Strict):
    """The learning rate stays at `lr` after the warm-up."""

    name: Literal["constant"] = Field(default="constant", description="The schedule.")
    warmup_steps: int = Field(default=0, ge=0, description="Steps over which the learning rate rises linearly to lr.")


class DecaySchedule(Strict):
    """The learning rate falls from `lr` after the warm-up and is at its lowest from `total_steps` on."""

    name: Literal["linear", "cosine"] = Field(description="The schedule.")
    warmup_steps: int = Field(default=0, ge=0, description="Steps over which the learning rate rises linearly to lr.")
    total_steps: int = Field(ge=1, description="The step, counted from 0, at which the learning rate is lowest.")
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1, description="The lowest learning rate, as a fraction of lr.")

    @model_validator(mode="after")
    def _warmup_within_total(self) -> "DecaySchedule":
        """`warmup_steps` of `total_steps` or more: no step is left to decay over."""
        if self.warmup_steps >= self.total_steps:
            raise ValueError(
                f"warmup_steps is {self.warmup_steps} and total_steps {self.total_steps}: "
                "no step is left to decay over; set total_steps above warmup_steps"
            )
        return self


Schedule = Annotated[ConstantSchedule | DecaySchedule, Field(discriminator="name")]


class OptimizerConfig(Strict):
    """AdamW (arXiv:1711.05101), its learning-rate schedule and gradient clipping."""

    lr: float = Field(default=1e-6, gt=0, description="Peak learning rate.")
    weight_decay: float = Field(
        default=0.0, ge=0, description="Decoupled weight decay of matrices; vectors (norms, biases) have none."
    )
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=(0.9, 0.999), strict=False, description="Decay rates of the first and second moment."
    )
    eps: float = Field(default=1e-8, gt=0, description="Added to the root of the second moment.")
    max_grad_norm: float | None = Field(
        default=1.0, gt=0, description="Largest Euclidean norm of the gradient, which is scaled down to it; null: none."
    )
    schedule: Schedule = Field(default=ConstantSchedule(), description="The learning rate of each step.")
    stop_after_steps_not_finite: int | None = Field(
        default=3,
        ge=1,
        description="Stop the run after this many consecutive steps that were not applied, since their loss, gradient "
        "or log-probabilities were NaN or infinite; null: only warn.",
    )
