"""What the scheduler is told once, and what may therefore be asked of it.

A knob is a field of one of the groups below: its default, its flag, its variable, its limits and
what it means stand there and nowhere else. `kvalet serve` and `kvalet simulate` hold the same
groups, and hand them on as they are.
"""

from dataclasses import dataclass, field

from kvalet.core.policy import LINE_ORDERS, VICTIM_POLICIES
from kvalet.core.store import HostBudget
from kvalet.errors import ConfigError, ContextExceeded, RequestError
from kvalet.settings import Choice, integer, number, setting, switch

UNLIMITED = -1
MIB = 1 << 20

LOOKAHEAD_STEPS = 8  # while copies run beside steps (behaviour P1)


@dataclass(frozen=True, slots=True)
class SlotConfig:
    """Requests that are served at once, and that may wait for it."""

    num_slots: int = setting(
        "-np, --parallel SLOTS",
        "LLAMA_ARG_N_PARALLEL",
        integer(1, 256),
        4,
        "requests served at once; more wait in a queue",
    )
    max_queue: int = setting(
        "--max-queue N",
        "LLAMA_ARG_MAX_QUEUE",
        integer(0),
        128,
        "requests that may wait for a slot; beyond it the answer is 503",
    )


@dataclass(frozen=True, slots=True)
class StepConfig:
    """How much is computed at once."""

    batch_size: int = setting(
        "-b, --batch-size TOKENS",
        "LLAMA_ARG_BATCH",
        integer(1, 4096),
        512,
        "most tokens computed in one step",
    )
    prefill_stretch: float = setting(
        "--prefill-stretch FACTOR",
        "LLAMA_SERVER_PREFILL_STRETCH",
        number(1),
        2.0,
        "how much longer a step of chats that generate may take when a prompt or a replay is "
        "computed beside them",
    )
    decode_chunk: int | None = None  # prefill tokens of such a step; None: measured

    def max_tokens(self, num_slots: int) -> int:
        """Of a step, in which all slots can decode."""
        return max(self.batch_size, num_slots)


@dataclass(frozen=True, slots=True)
class ShiftConfig:
    """What becomes of a sequence that reaches the context size."""

    context_shift: bool = setting(
        "--context-shift, --no-context-shift",
        "LLAMA_ARG_CONTEXT_SHIFT",
        switch,
        False,
        "a chat that reaches the context size forgets the middle of what it knows instead of "
        "ending; needs at least 64 cells",
    )
    rotate_s: float = setting(
        "--preempt-rotate SECONDS",
        "LLAMA_SERVER_PREEMPT_ROTATE",
        number(0),
        2.0,
        "how long the head of the line waits before a chat that shifts its context makes way",
    )


@dataclass(frozen=True, slots=True)
class PreemptionConfig:
    """When a sequence is parked, which one, and which one enters. Raises ConfigError for
    watermarks that leave nothing between them."""

    preempt: bool = setting(
        "--preempt, --no-preempt",
        "LLAMA_ARG_PREEMPT",
        switch,
        True,
        "park a chat when the pool is full; off: a chat that gets no room ends with an error",
    )
    victim_policy: str | None = setting(
        "--preempt-policy POLICY",
        "LLAMA_SERVER_PREEMPT_POLICY",
        Choice(*VICTIM_POLICIES),
        None,
        f"which chat is parked: {', '.join(VICTIM_POLICIES)}; never the one with most tokens",
        shown="smallest; youngest with the watermark trigger",
    )
    trigger: str = setting(
        "--preempt-trigger TRIGGER",
        "LLAMA_SERVER_PREEMPT_TRIGGER",
        Choice("lookahead", "watermark"),
        "lookahead",
        "when a chat is parked: when the coming steps do not fit (lookahead), or when use of the "
        "pool crosses --preempt-high (watermark)",
    )
    high_percent: int = setting(
        "--preempt-high PERCENT",
        "LLAMA_SERVER_PREEMPT_HIGH",
        integer(1, 100),
        94,
        "watermark trigger: a chat is parked when more of the pool is used",
    )
    low_percent: int = setting(
        "--preempt-low PERCENT",
        "LLAMA_SERVER_PREEMPT_LOW",
        integer(1, 100),
        80,
        "watermark trigger: a chat enters only while less of the pool is used",
    )
    entry_order: str = setting(
        "--preempt-resume ORDER",
        "LLAMA_SERVER_PREEMPT_RESUME",
        Choice(*LINE_ORDERS),
        "head",
        "which chat enters, when more wait than fit: the one that has waited longest and none "
        "before it (head); likewise, but parked chats before new ones, which wait longer for it "
        "(parked); or any that fits, most often parked first (pass), which can keep a large chat "
        "waiting for long",
    )
    starved_after: int = setting(
        "--preempt-starved N",
        "LLAMA_SERVER_PREEMPT_STARVED",
        integer(1),
        3,
        "parks after which a chat is passed over while another can be parked",
    )
    replay_margin: int = setting(
        "--preempt-replay-margin STEPS",
        "LLAMA_SERVER_PREEMPT_REPLAY_MARGIN",
        integer(0),
        32,
        "more than a page of a parked chat is computed again only when there is room for so many "
        "steps after that",
    )
    preempt_every: int = setting(
        "N",
        "LLAMA_SERVER_PREEMPT_EVERY",
        integer(0),
        0,
        "park every chat after each N tokens it generates, so that every page it holds alone "
        "comes back from the host or is computed again",
        shown="0, off",
    )
    planner: bool = setting(
        "off",
        "LLAMA_SERVER_PREEMPT_PLANNER",
        switch,
        True,
        "park no chat ahead of time, only when a step has run out of pages",
    )

    def __post_init__(self) -> None:
        if self.low_percent >= self.high_percent:
            low, high = self.low_percent, self.high_percent
            raise ConfigError(f"--preempt-low {low} must be below --preempt-high {high}")

    @property
    def victims(self) -> str:
        own = "youngest" if self.trigger == "watermark" else "smallest"
        return self.victim_policy or own


@dataclass(frozen=True, slots=True)
class CopyConfig:
    """How pages move between pool and host."""

    beside_steps: bool = setting(
        "--preempt-async, --no-preempt-async",
        "LLAMA_ARG_PREEMPT_ASYNC",
        switch,
        True,
        "copies to and from the host run beside steps; off: a step waits for its copies",
    )
    ahead: bool = setting(
        "--preempt-mirror MODE",
        "LLAMA_SERVER_PREEMPT_MIRROR",
        switch,
        True,
        "`on` or `off`: full pages are copied to the host ahead of a park, which then has less to "
        "copy; never with --no-preempt-async",
    )

    @property
    def lookahead_steps(self) -> int:
        return LOOKAHEAD_STEPS if self.beside_steps else 1

    @property
    def mirror(self) -> bool:
        return self.ahead and self.beside_steps


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """What is held in host memory, in MiB."""

    parked: int = setting(
        "--preempt-ram MiB",
        "LLAMA_ARG_PREEMPT_RAM",
        integer(UNLIMITED),
        8192,
        "host memory for parked chats; a chat that does not fit goes to --preempt-disk, or is "
        "computed again when it comes back; -1: no limit, 0: never copy",
    )
    cached: int = setting(
        "-cram, --cache-ram MiB",
        "LLAMA_ARG_CACHE_RAM",
        integer(UNLIMITED),
        8192,
        "host memory for pages that left the pool and may be asked for again; -1: no limit, 0: "
        "keep none",
    )

    def budget(self, page_bytes: int, disk: int = 0) -> HostBudget:
        """In pages. `disk`: MiB."""
        parked, on_disk, cached = (
            None if mib == UNLIMITED else mib * MIB // page_bytes
            for mib in (self.parked, disk, self.cached)
        )
        return HostBudget(parked, on_disk, cached)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The groups as they were given, and what became of the others once the model was known."""

    n_ctx: int  # cells; what every slot is told
    slots: SlotConfig = field(default_factory=SlotConfig)
    steps: StepConfig = field(default_factory=StepConfig)
    shift: ShiftConfig = field(default_factory=ShiftConfig)
    preemption: PreemptionConfig = field(default_factory=PreemptionConfig)
    host_budget: HostBudget = field(default_factory=HostBudget)
    lookahead_steps: int = 1
    mirror: bool = False  # copy pages to the host ahead of a park

    @property
    def batch_size(self) -> int:
        return self.steps.max_tokens(self.slots.num_slots)

    def validate(self, prompt: tuple[int, ...], id_slot: int | None) -> None:
        """Raises RequestError or ContextExceeded for what can never be served."""
        if not prompt:
            raise RequestError("the prompt has no tokens", "prompt")
        if len(prompt) >= self.n_ctx:
            raise ContextExceeded(len(prompt), self.n_ctx)
        if id_slot is not None and not 0 <= id_slot < self.slots.num_slots:
            raise RequestError(f"there is no slot {id_slot}", "id_slot")
