"""Small loads and round costs."""

from dataclasses import replace

from kvalet.settings import changed
from kvalet.sim.costs import CostModel
from kvalet.sim.scenario import Scenario
from kvalet.sim.workloads import Lengths, Request, draw

NOTHING = CostModel(
    step_s=0.0,
    row_s=0.0,
    draw_s=0.0,
    decode_cell_s=0.0,
    prefill_cell_s=0.0,
    beside_share=0.0,
    host_s=0.0,
    host_row_s=0.0,
    page_out_s=0.0,
    page_in_s=0.0,
)
SECOND_A_STEP = replace(NOTHING, step_s=1.0, page_out_s=0.5, page_in_s=0.25)
PRESSED = changed(Scenario(), chats=4, tokens=250, ctx_size=640)  # `draw_small` for it parks


def request(conversation: int, num_prompt: int, num_output: int, at: float = 0.0) -> Request:
    return Request(conversation, at, num_prompt, num_output, num_output)


def draw_small(workload: str, seed: int = 1, arrivals: str = "together") -> tuple[Request, ...]:
    lengths = Lengths(PRESSED.tokens, PRESSED.ctx_size)
    return draw(workload, arrivals, PRESSED.chats, 0.5, lengths, seed)
