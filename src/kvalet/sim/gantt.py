"""One run as a picture: cells that each chat holds over time, and what it does meanwhile."""

from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kvalet.core.plan import PAGE_CELLS
from kvalet.core.scheduler import Scheduler
from kvalet.sim.costs import CostModel
from kvalet.sim.plot import save
from kvalet.sim.report import load_name
from kvalet.sim.run import Run, Simulation
from kvalet.sim.scenario import Scenario
from kvalet.sim.timeline import Phase, Timeline
from kvalet.sim.workloads import Request

STRIP: Final = 0.22  # of a lane's height
GAP: Final = 0.9  # of a lane's height, strip and cells together
HELD: Final = "#9BC4E2"

STYLES: Final[dict[Phase, tuple[str, str, str]]] = {  # fill, hatch, name
    Phase.WAITING: ("#f0f0f0", "", "waits for a slot or room"),
    Phase.RUNNING: ("#0072B2", "", "computes"),
    Phase.PARKING: ("#D55E00", "", "pages go out"),
    Phase.PARKED: ("#F5C9A6", "////", "parked"),
    Phase.RESTORING: ("#009E73", "", "pages come in"),
    Phase.REPLAYING: ("#CC79A7", "xxxx", "computes again"),
}


class Watch:
    """Cells that each conversation holds, and since when."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.cells: list[dict[str, int]] = []

    def __call__(self, now: float, scheduler: Scheduler) -> None:
        cells = {s.request.request_id: len(s.table) * PAGE_CELLS for s in scheduler.slots if s}
        if self.times and self.times[-1] == now:
            self.times.pop()
            self.cells.pop()
        if not self.cells or self.cells[-1] != cells:
            self.times.append(now)
            self.cells.append(cells)

    def held(self, label: str) -> list[int]:
        return [cells.get(label, 0) for cells in self.cells]


def draw(scenario: Scenario, requests: tuple[Request, ...], costs: CostModel, path: Path) -> None:
    """Run it once more and draw what happened. Raises ConfigError."""
    watch = Watch()
    run = Simulation(scenario, requests, costs, watch).run()
    lanes: dict[int, list[Timeline]] = {}
    for timeline in run.timelines:
        lanes.setdefault(timeline.conversation, []).append(timeline)
    figure = Figure(figsize=(12, 2.6 + 0.5 * len(lanes)), layout="constrained", dpi=150)
    total, chats = figure.subplots(2, 1, sharex=True, height_ratios=(1.4, 0.5 * len(lanes)))
    _total(total, scenario, watch)
    most = max(max(cells.values(), default=0) for cells in watch.cells)
    for line, conversation in enumerate(sorted(lanes)):
        _lane(chats, line, lanes[conversation], watch, conversation, most)
    _label(chats, sorted(lanes), run)
    figure.suptitle(_title(scenario, run), fontsize=11, x=0.01, ha="left", fontweight="bold")
    save(figure, path)


def _total(axis: Axes, scenario: Scenario, watch: Watch) -> None:
    held = [sum(cells.values()) for cells in watch.cells]
    axis.fill_between(watch.times, held, step="post", color=HELD, linewidth=0)
    axis.axhline(scenario.ctx_size, color="#000000", linewidth=0.8, linestyle="--")
    axis.set_ylim(0, 1.15 * max(scenario.ctx_size, *held))
    axis.set_ylabel("cells held", fontsize=9)
    axis.annotate(
        f"pool: {scenario.ctx_size:,} cells",
        (1.0, scenario.ctx_size),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="bottom",
        fontsize=8,
    )
    _bare(axis)


def _lane(
    axis: Axes, line: int, turns: list[Timeline], watch: Watch, conversation: int, most: int
) -> None:
    """A strip that says what the chat does, and above it what it holds."""
    held = watch.held(str(conversation))
    base = line + 1 - STRIP  # the axis counts downwards
    tops = [base - (GAP - STRIP) * cells / most for cells in held]
    axis.fill_between(watch.times, base, tops, step="post", color=HELD, linewidth=0)
    for timeline in turns:
        for phase, start, end in timeline.spans():
            fill, hatch, _ = STYLES[phase]
            axis.broken_barh(
                [(start, end - start)],
                (base, STRIP),
                facecolor=fill,
                hatch=hatch,
                edgecolor="#555555" if hatch else fill,
                linewidth=0,
            )


def _label(axis: Axes, conversations: list[int], run: Run) -> None:
    axis.set_yticks(
        [line + 1 - STRIP / 2 for line in range(len(conversations))],
        [f"chat {conversation + 1}" for conversation in conversations],
        fontsize=8,
    )
    axis.set_ylim(len(conversations) + STRIP, 0)
    axis.set_xlim(run.start_s, run.end_s)
    axis.set_xlabel("seconds", fontsize=9)
    _bare(axis)
    used = {phase for timeline in run.timelines for phase, _, _ in timeline.spans()}
    shown = [STYLES[phase] for phase in STYLES if phase in used]
    axis.legend(
        handles=[
            Patch(facecolor=HELD, label="cells held"),
            *(
                Patch(facecolor=fill, hatch=hatch, edgecolor="#555555", linewidth=0.5, label=name)
                for fill, hatch, name in shown
            ),
        ],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.12),
        ncols=len(shown) + 1,
        fontsize=8,
        frameon=False,
    )


def _bare(axis: Axes) -> None:
    axis.tick_params(labelsize=8, length=2)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _title(scenario: Scenario, run: Run) -> str:
    return (
        f"{load_name(scenario)}; {scenario.preemption.victims}, {scenario.preemption.entry_order}: "
        f"{run.counters.n_preempt} parks, "
        f"{run.end_s - run.start_s:.1f} s"
    )
