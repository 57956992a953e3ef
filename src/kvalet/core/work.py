"""What a step computes, as far as its duration depends on it."""

from dataclasses import dataclass

from kvalet.core.plan import StepPlan


@dataclass(frozen=True, slots=True)
class StepWork:
    """Rows of a step, and their depths summed: the cells that a row sees, its own included."""

    decode_rows: int = 0
    decode_depth: int = 0
    prefill_rows: int = 0  # prompts and replays
    prefill_depth: int = 0
    draws: int = 0  # rows whose logits are computed

    @property
    def num_rows(self) -> int:
        return self.decode_rows + self.prefill_rows


def work_of(plan: StepPlan) -> StepWork:
    decode_rows = decode_depth = prefill_rows = prefill_depth = draws = 0
    for grant in plan.grants:
        count = len(grant.tokens)
        draws += len(grant.draws)
        if count == 1:
            decode_rows += 1
            decode_depth += grant.start + 1
        else:
            prefill_rows += count
            prefill_depth += count * grant.start + count * (count + 1) // 2
    return StepWork(decode_rows, decode_depth, prefill_rows, prefill_depth, draws)
