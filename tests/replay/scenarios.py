"""The scenarios that are recorded: by name, each from a seed of its own.

What is used only to record: a replay takes its scenario from the trace. Priorities, parks by hand
under `parked`, and rotation under the watermark trigger each have scenarios to themselves, so that
a change of one of those alters few traces.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from kvalet.core.plan import PAGE_CELLS
from kvalet.core.policy import LINE_ORDERS, VICTIM_POLICIES
from kvalet.core.sequence import Status
from tests.replay.scenario import Arrival, Cancel, Deed, FaultRules, Option, Order, Scenario

ALIVE: Final = tuple(status.value for status in Status if status is not Status.ENDED)
PARKED: Final = ("preempting", "preempted", "restoring", "replay")


@dataclass(frozen=True)
class Load:
    """Chats as they come: ranges to draw from."""

    num_chats: int = 9
    prompt: tuple[int, int] = (20, 160)
    new: tuple[int, int] = (30, 170)
    over: int = 100  # steps within which all arrive
    share: int = 3  # one in so many has a prefix in common with others; 0: none
    priorities: tuple[int, ...] = (0,)
    choices: tuple[int, ...] = (1,)
    keep: tuple[int, ...] = (0,)
    discard: tuple[int, ...] = (0,)
    id_slots: tuple[int | None, ...] = (None,)
    temperatures: tuple[float, ...] = (0.0, 0.8)
    page: int = 1  # prompts are a multiple of so many tokens,
    past: int = 0  # and so many more
    unlimited: bool = False  # some have no limit of new tokens


def chats(rng: Random, load: Load) -> tuple[Arrival, ...]:
    steps = sorted(rng.randrange(load.over) for _ in range(load.num_chats))
    return tuple(_chat(rng, load, step, salt) for salt, step in enumerate(steps, 1))


def _chat(rng: Random, load: Load, step: int, salt: int) -> Arrival:
    shares = load.share and rng.randrange(load.share) == 0
    num_new = rng.randint(*load.new)
    num_prompt = rng.randint(*load.prompt)
    is_unlimited = load.unlimited and rng.randrange(2) == 0
    return Arrival(
        step=step,
        num_prompt=num_prompt - num_prompt % load.page + load.past,
        salt=salt,
        num_new=None if is_unlimited else num_new,
        prefix=rng.randrange(2),
        num_shared=rng.choice((40, 64, 96)) if shares else 0,
        ends_at=rng.choice((None, None, None, max(1, num_new // 2))),
        choices=rng.choice(load.choices),
        priority=rng.choice(load.priorities),
        seed=rng.randrange(1 << 30),
        temperature=rng.choice(load.temperatures),
        repeat_penalty=rng.choice((1.0, 1.0, 1.1)),
        cache_prompt=rng.randrange(6) > 0,
        id_slot=rng.choice(load.id_slots),
        num_keep=rng.choice(load.keep),
        num_discard=rng.choice(load.discard),
    )


def scenario(
    name: str,
    load: Load | None = None,
    *,
    pages: int = 16,
    slots: int = 4,
    delay: int = 0,
    faults: FaultRules | None = None,
    step_s: float = 0.05,
    **options: Option,
) -> Scenario:
    settings = {"num_slots": slots, "n_ctx": pages * PAGE_CELLS, **options}
    arrivals = chats(Random(name), load or Load())
    return Scenario(
        name,
        pages,
        settings,
        arrivals,
        faults=faults or FaultRules(),
        transfer_steps=delay,
        step_s=step_s,
    )


def also(base: Scenario, more: dict[str, Option]) -> Scenario:
    return replace(base, options={**base.options, **more})


def with_orders(base: Scenario, count: int, over: int, kinds: tuple[Deed, ...]) -> Scenario:
    rng = Random(f"{base.name} orders")
    num_slots = base.options["num_slots"]
    assert isinstance(num_slots, int)
    orders = [
        Order(
            step=rng.randrange(over),
            do=rng.choice(kinds),
            slot=rng.randrange(num_slots),
            path=rng.choice("ab"),
            timeout_s=rng.choice((0.5, 2.0, 1e6)),
        )
        for _ in range(count)
    ]
    # At the end nobody is left parked by hand.
    resumes = [Order(over, "resume", slot) for slot in range(num_slots)]
    return replace(base, orders=(*sorted(orders, key=lambda order: order.step), *resumes))


def with_cancels(base: Scenario, times: int = 3, states: tuple[str, ...] = ALIVE) -> Scenario:
    rng = Random(f"{base.name} cancels")
    cancels = [Cancel(rng.randrange(90), state) for state in states for _ in range(times)]
    return replace(base, cancels=tuple(cancels))


LONG = Load(num_chats=6, prompt=(60, 250), new=(100, 250))
MANY = Load(num_chats=16, over=160, new=(10, 100))
ENDLESS = Load(num_chats=5, prompt=(30, 150), new=(250, 420), share=2, over=60)
ALIGNED = Load(num_chats=8, prompt=(32, 128), page=PAGE_CELLS, over=1, share=0, new=(60, 200))
# Choices that draw the same tokens, and so hold the same full pages.
TWINS = replace(ALIGNED, past=1, choices=(2, 3), temperatures=(0.0,), num_chats=5)
CROWD = replace(ENDLESS, num_chats=9, over=300, prompt=(20, 100))
CROWDED = replace(LONG, num_chats=10, prompt=(40, 120))
GROWING = Load(num_chats=9, prompt=(20, 60), new=(100, 250), over=60)
BY_HAND: Final[tuple[Deed, ...]] = ("park", "park", "resume")
FILES: Final[tuple[Deed, ...]] = (
    *("save", "save", "save", "save", "save", "restore", "restore", "restore", "restore"),
    *("erase", "damage", "park", "resume"),
)


def _budgets() -> list[Scenario]:
    ahead: dict[str, Option] = {"mirror": True, "lookahead_steps": 8}
    return [
        scenario("swap"),
        scenario("swap-async", CROWDED, pages=12, delay=3, lookahead_steps=8),
        scenario("recompute", host_budget_pages=0),
        scenario("recompute-margin", LONG, host_budget_pages=0, replay_margin=32),
        scenario("mixed-budget", LONG, host_budget_pages=6, delay=2),
        scenario("disk", LONG, host_budget_pages=4, disk_budget_pages=40, delay=2),
        scenario(
            "disk-small", LONG, host_budget_pages=3, disk_budget_pages=8, cache_budget_pages=4
        ),
        scenario("cache", MANY, cache_budget_pages=8, delay=1),
        scenario("cache-unlimited", MANY, cache_budget_pages=None, host_budget_pages=8),
        also(scenario("mirror", LONG, pages=12, cache_budget_pages=None, delay=3), ahead),
        also(scenario("mirror-small", MANY, cache_budget_pages=10, delay=1), ahead),
        also(scenario("mirror-aligned", ALIGNED, cache_budget_pages=None, delay=1), ahead),
    ]


def _policies() -> list[Scenario]:
    orders = sorted(LINE_ORDERS)
    return [
        *(
            scenario(
                f"policy-{policy}-{orders[index % 3]}",
                pages=14,
                slots=5,
                delay=index % 2,
                victim_policy=policy,
                entry_order=orders[index % 3],
                host_budget_pages=(None, 8)[index % 2],
            )
            for index, policy in enumerate(VICTIM_POLICIES)
        ),
        *(
            scenario(f"order-{order}", MANY, pages=12, entry_order=order, host_budget_pages=6)
            for order in orders
        ),
        scenario("watermark", GROWING, trigger="watermark", pages=20, slots=6),
        scenario(
            "watermark-pass",
            GROWING,
            trigger="watermark",
            high_percent=80,
            low_percent=60,
            entry_order="pass",
            delay=2,
        ),
        scenario(
            "watermark-even", GROWING, slots=6, trigger="watermark", high_percent=75, low_percent=74
        ),
        scenario("priorities", Load(priorities=(0, 0, 1, 5)), pages=12),
        scenario("priorities-recompute", Load(priorities=(0, 2)), host_budget_pages=0, pages=12),
    ]


def _knobs() -> list[Scenario]:
    families = Load(num_chats=5, choices=(1, 3, 4))
    return [
        scenario("forced", preempt_every=7, delay=1),
        scenario("forced-recompute", preempt_every=16, host_budget_pages=0, pages=24),
        scenario("no-planner", planner=False, delay=3),
        scenario("no-preempt", LONG, preempt=False),
        scenario("to-the-end", Load(unlimited=True), pages=20, n_ctx=200, delay=1),
        scenario("paced", LONG, pages=24, prefill_stretch=1.5, batch_size=96),
        scenario("fixed-chunk", LONG, decode_chunk=24, batch_size=64, delay=1),
        scenario("families", families, pages=12, slots=5, delay=1),
        scenario("families-recompute", families, pages=14, slots=5, host_budget_pages=0),
        scenario("twins", TWINS, slots=6, delay=3, preempt_every=PAGE_CELLS),
        scenario("prefixes", Load(num_chats=14, share=1), slots=6, host_budget_pages=10, delay=1),
        scenario(
            "pinned-slots",
            Load(num_chats=24, over=50, id_slots=(None, 0, 1, 2)),
            slots=3,
            max_queue=6,
        ),
    ]


def _endless() -> list[Scenario]:
    keeping = replace(ENDLESS, keep=(0, 40, -1), discard=(0, 32, 100), share=1)
    sharing = replace(ENDLESS, choices=(2, 3), discard=(32, 64), num_chats=3, prompt=(100, 200))
    copies = FaultRules(transfer=4, until=300)
    return [
        also(base, {"context_shift": True, "n_ctx": 256, "rotate_s": 1.0})
        for base in (
            scenario("shift-rotation", ENDLESS, pages=14),
            scenario("shift-rotation-async", ENDLESS, pages=14, delay=4, lookahead_steps=8),
            scenario("shift-crowd", CROWD, pages=26, slots=7, delay=1),
            scenario("shift-refused", ENDLESS, pages=12, host_budget_pages=0),
            scenario("shift-refused-small", ENDLESS, pages=12, host_budget_pages=5, delay=1),
            scenario("shift-keep", keeping, pages=16, delay=1),
            scenario("shift-families", sharing, pages=24, slots=6, delay=1),
            scenario("shift-pass", ENDLESS, pages=12, entry_order="pass", mirror=True),
            scenario(
                "shift-faults", ENDLESS, pages=12, delay=1, entry_order="parked", faults=copies
            ),
            scenario("shift-watermark", ENDLESS, pages=14, trigger="watermark"),
        )
    ]


def _by_hand() -> list[Scenario]:
    calm = Load(num_chats=7, over=250, new=(10, 60), share=1)
    hand = scenario("by-hand", Load(num_chats=12, over=200), cache_budget_pages=6, delay=1)
    tight = scenario("by-hand-recompute", MANY, host_budget_pages=3, entry_order="pass")
    parked = scenario("by-hand-parked", MANY, entry_order="parked", delay=2)
    files = scenario("state-files", calm, slots=3, delay=2, cache_budget_pages=4)
    small = scenario("state-files-disk", calm, pages=12, host_budget_pages=4, disk_budget_pages=9)
    return [
        with_orders(hand, 40, 260, BY_HAND),
        with_orders(tight, 40, 200, BY_HAND),
        with_orders(parked, 30, 200, BY_HAND),
        with_orders(files, 80, 300, FILES),
        with_orders(small, 80, 300, FILES),
    ]


def _faults() -> list[Scenario]:
    copies = FaultRules(transfer=4)
    restores = FaultRules(restore=2, no_room=37)
    steps = FaultRules(compute=211, no_room=41, execute=97)
    return [
        scenario("fault-copies", LONG, delay=2, faults=copies),
        scenario("fault-restores", faults=restores, delay=1, cache_budget_pages=8),
        scenario("fault-all-restores", LONG, faults=FaultRules(restore=1, until=250), delay=1),
        scenario("fault-all-copies", LONG, faults=FaultRules(transfer=1, until=200), delay=1),
        scenario("fault-steps", MANY, faults=steps),
        with_cancels(scenario("cancels", MANY, slots=5, delay=3, pages=10)),
        with_cancels(scenario("cancels-parked", CROWDED, pages=12, delay=2), states=PARKED),
        with_cancels(
            scenario(
                "cancels-recompute",
                replace(LONG, num_chats=12),
                host_budget_pages=0,
                decode_chunk=16,
            ),
            states=("replay",),
        ),
    ]


def _mixed(number: int) -> Scenario:
    """A bit of everything."""
    rng = Random(f"mixed {number}")
    base = scenario(
        f"mixed-{number}",
        replace(MANY, choices=(1, 1, 1, 3), share=2),
        pages=rng.randint(10, 18),
        slots=rng.randint(3, 6),
        delay=rng.choice((0, 1, 4)),
        faults=FaultRules(transfer=rng.choice((0, 7)), no_room=rng.choice((0, 53)), compute=301),
        host_budget_pages=rng.choice((None, 0, 5, 9)),
        disk_budget_pages=rng.choice((0, 12)),
        cache_budget_pages=rng.choice((0, 6, None)),
        mirror=rng.random() < 0.5,
        victim_policy=rng.choice(sorted(VICTIM_POLICIES)),
        entry_order=rng.choice(("head", "pass")),
        lookahead_steps=rng.choice((1, 8)),
        replay_margin=rng.choice((0, 32)),
    )
    return with_cancels(with_orders(base, 40, 220, (*FILES, *BY_HAND)), times=1)


SCENARIOS: Final = (
    *_budgets(),
    *_policies(),
    *_knobs(),
    *_endless(),
    *_by_hand(),
    *_faults(),
    *(_mixed(number) for number in range(1, 6)),
)
