"""Totals since the start, under the names of /metrics without their prefix (behaviour M1)."""

from dataclasses import dataclass

from kvalet.core.plan import StepOutcome, StepPlan
from kvalet.core.sequence import Sequence


@dataclass(slots=True)
class Totals:
    prompt_tokens_total: int = 0  # computed, of prompts that are complete
    prompt_seconds_total: float = 0.0
    tokens_predicted_total: int = 0
    tokens_predicted_seconds_total: float = 0.0
    n_decode_total: int = 0  # steps that computed tokens
    n_busy_slots_total: int = 0  # sequences that took part, summed over those steps
    step_seconds_total: float = 0.0  # planning to delivery
    compute_seconds_total: float = 0.0  # of those, in the device's graph executor
    copy_seconds_total: float = 0.0  # the copier was busy

    def count_token(self, seq: Sequence, seconds: float) -> None:
        """A token was drawn for `seq`, not yet appended, in `seconds` without pauses."""
        self.tokens_predicted_total += 1
        if seq.num_generated:
            self.tokens_predicted_seconds_total += seconds
        else:
            self.prompt_tokens_total += seq.num_prompt - seq.num_cached
            self.prompt_seconds_total += seconds

    def count_step(self, plan: StepPlan, outcome: StepOutcome, seconds: float) -> None:
        if plan.grants:
            self.n_decode_total += 1
            self.n_busy_slots_total += len(plan.grants)
        self.step_seconds_total += seconds
        self.compute_seconds_total += outcome.compute_s
        self.copy_seconds_total += outcome.copy_s
