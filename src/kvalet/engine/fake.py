"""A deterministic engine without a model, public, for tests and for the simulator.

Its "keys and values" are the token ids themselves, marked with how far they were shifted, written
into pages and read back through the tables of the plan. The token it draws is a hash of every cell
of the sequence, so a lost page, a wrong table, a broken copy or a skipped replay token changes the
text. A plan that reads what nobody has written is an error. Faults can be injected.
"""

import hashlib
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kvalet.core.plan import (
    PAGE_CELLS,
    AnyTransfer,
    Direction,
    Fault,
    FaultKind,
    Grant,
    HostId,
    PageId,
    PageShift,
    Sampled,
    SeqId,
    StateId,
    StateLoad,
    StateSave,
    StepOutcome,
    StepPlan,
    Transfer,
    TransferId,
)
from kvalet.core.request import SamplingParams
from kvalet.engine.base import DrawMask, EngineInfo, EngineReport
from kvalet.errors import EngineError

Masks: TypeAlias = Mapping[tuple[SeqId, int], bytes]

UNUSED = -1  # a cell nobody has written: reading it is an error
SHIFT_MARK = 1 << 20  # added to a cell per position that it is shifted towards the start


def next_token(
    cells: Sequence[int],
    params: SamplingParams,
    index: int,
    num_vocab: int,
    allowed: bytes | None = None,
) -> int:
    """What this engine draws as generated token `index` after the tokens `cells`; of `allowed`, as
    `DrawMask` has them, if that is given."""
    key = (params.seed, params.prompt_index, params.choice, index)
    if params.temperature == 0:
        key = (0, 0, 0, 0)
    packed = struct.pack(f"<4q{len(cells)}q", *key, *cells)
    digest = hashlib.blake2b(packed, digest_size=8).digest()
    number = int.from_bytes(digest, "little")
    if allowed is None:
        return number % num_vocab
    tokens = [token for token in range(num_vocab) if allowed[token // 8] >> token % 8 & 1]
    return tokens[number % len(tokens)]


@dataclass(slots=True)
class Faults:
    """What goes wrong, decided per item; a hook answers with a message, or None for no fault.
    `transfer` is asked about copies of pages, `file` about state files."""

    compute: Callable[[Grant], str | None] = lambda grant: None
    transfer: Callable[[Transfer], str | None] = lambda transfer: None
    file: Callable[[StateSave | StateLoad], str | None] = lambda transfer: None
    no_room: Callable[[Grant], bool] = lambda grant: False
    execute: Callable[[StepPlan], Exception | None] = lambda plan: None


@dataclass(frozen=True, slots=True)
class StateFile:
    tokens: tuple[int, ...]
    pages: tuple[tuple[int, ...], ...]  # cells; one that is UNUSED makes it a damaged page


@dataclass(slots=True)
class FakeEngine:
    """`transfer_steps`: steps a copy takes to land; 0 lands it in its own step. State files are
    kept by path, and are written and read while no other transfer is in flight."""

    num_pages: int
    num_vocab: int = 256
    max_step_tokens: int = 512
    transfer_steps: int = 0
    faults: Faults = field(default_factory=Faults)
    files: dict[str, StateFile] = field(default_factory=dict[str, StateFile])
    _pages: list[list[int]] = field(init=False)
    _states: dict[StateId, list[int]] = field(default_factory=dict[StateId, list[int]])
    _host: dict[HostId, list[int]] = field(default_factory=dict[HostId, list[int]])
    _due: deque[tuple[int, AnyTransfer]] = field(default_factory=deque[tuple[int, AnyTransfer]])
    _files: deque[tuple[int, AnyTransfer]] = field(default_factory=deque[tuple[int, AnyTransfer]])

    def __post_init__(self) -> None:
        self._pages = [[UNUSED] * PAGE_CELLS for _ in range(self.num_pages)]

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            num_pages=self.num_pages,
            page_bytes=PAGE_CELLS * 4,
            num_vocab=self.num_vocab,
            max_step_tokens=self.max_step_tokens,
            fingerprint=b"fake".ljust(32, b"\0"),
            report=EngineReport(device="fake"),
        )

    def execute(self, plan: StepPlan, masks: Iterable[DrawMask] = ()) -> StepOutcome:
        error = self.faults.execute(plan)
        if error is not None:
            raise error
        if plan.num_tokens > self.max_step_tokens:
            raise EngineError(f"{plan.num_tokens} tokens in a step of {self.max_step_tokens}")
        for page in plan.freed:
            self._pages[page] = [UNUSED] * PAGE_CELLS
        for host in plan.host_freed:
            self._host.pop(host, None)
        for copy in plan.page_copies:
            self._pages[copy.dst] = list(self._pages[copy.src])
        for shift in plan.page_shifts:
            self._shift(shift)
        outcome = self._compute(plan, {(m.seq_id, m.index): m.allowed for m in masks})
        for transfer in plan.transfers:
            queue = self._due if isinstance(transfer, Transfer) else self._files
            queue.append((plan.step + self.transfer_steps, transfer))
        landed, failed = self._land(plan.step)
        return StepOutcome(
            sampled=outcome.sampled,
            not_run=outcome.not_run,
            failed=outcome.failed,
            landed=landed,
            failed_transfers=failed,
        )

    def close(self) -> None:
        self._due.clear()
        self._files.clear()

    def _shift(self, shift: PageShift) -> None:
        mark = -shift.distance * SHIFT_MARK
        for page in shift.pages:
            cells = self._pages[page]
            self._pages[page] = [cell if cell == UNUSED else cell + mark for cell in cells]

    def _compute(self, plan: StepPlan, masks: Masks) -> StepOutcome:
        not_run = tuple(g.seq_id for g in plan.grants if self.faults.no_room(g))
        failed: dict[SeqId, str] = {}
        sampled: dict[SeqId, tuple[Sampled, ...]] = {}
        runs = [grant for grant in plan.grants if grant.seq_id not in not_run]
        for grant in runs:
            self._write(grant)
        for grant in runs:
            message = self.faults.compute(grant)
            if message is not None:
                failed[grant.seq_id] = message
            elif any(not any(masks.get((grant.seq_id, draw.index), b"\1")) for draw in grant.draws):
                failed[grant.seq_id] = "every token is banned"
            elif grant.draws:
                sampled[grant.seq_id] = tuple(self._draw(grant, masks))
        return StepOutcome(sampled=sampled, not_run=not_run, failed=failed)

    def _write(self, grant: Grant) -> None:
        for position, token in enumerate(grant.tokens, grant.start):
            page, cell = divmod(position, PAGE_CELLS)
            self._pages[grant.pages[page]][cell] = token

    def _draw(self, grant: Grant, masks: Masks) -> Iterator[Sampled]:
        end = grant.start + len(grant.tokens)
        cells = self._read(grant.pages, end)
        if UNUSED in cells:
            raise EngineError(f"sequence {grant.seq_id} reads an unused cell")
        for count, draw in enumerate(grant.draws, start=end - len(grant.draws) + 1):
            allowed = masks.get((grant.seq_id, draw.index))
            yield Sampled(
                next_token(cells[:count], draw.params, draw.index, self.num_vocab, allowed)
            )

    def _read(self, pages: tuple[PageId, ...], num_cells: int) -> list[int]:
        return [cell for page in pages for cell in self._pages[page]][:num_cells]

    def _land(self, step: int) -> tuple[tuple[TransferId, ...], dict[TransferId, Fault]]:
        landed: list[TransferId] = []
        failed: dict[TransferId, Fault] = {}
        while (queue := self._due or self._files) and queue[0][0] <= step:
            _, transfer = queue.popleft()
            fault = self._run(transfer)
            if fault is None:
                landed.append(transfer.transfer_id)
            else:
                failed[transfer.transfer_id] = fault
        return tuple(landed), failed

    def _run(self, transfer: AnyTransfer) -> Fault | None:
        message = self._message(transfer)
        if message is not None:
            return Fault(message)
        match transfer:
            case StateSave():
                pages = tuple(tuple(self._stored(page)) for page in transfer.pages)
                self.files[transfer.path] = StateFile(transfer.tokens, pages)
            case StateLoad():
                return self._load(transfer)
            case Transfer():
                self._copy(transfer)
        return None

    def _message(self, transfer: AnyTransfer) -> str | None:
        """Of a fault that is injected."""
        if not isinstance(transfer, Transfer):
            return self.faults.file(transfer)
        return self.faults.transfer(transfer) if transfer.moves else None  # a mark cannot fail

    def _copy(self, transfer: Transfer) -> None:
        for place, host in transfer.moves:
            if transfer.direction is Direction.OUT:
                self._host[host] = list(self._stored(place))
            elif isinstance(place, StateId):
                self._states[place] = list(self._stored(host))
            else:
                self._pages[place] = list(self._stored(host))

    def _load(self, load: StateLoad) -> Fault | None:
        file = self.files.get(load.path)
        if file is None:
            return Fault(f"there is no state file {load.path}", FaultKind.GONE)
        if file.tokens != load.tokens:
            message = f"state file {load.path} was replaced by another one"
            return Fault(message, FaultKind.REFUSED)
        if any(UNUSED in file.pages[index] for index, _ in load.moves):
            return Fault(f"state file {load.path} is damaged", FaultKind.REFUSED)
        for index, host in load.moves:
            self._host[host] = list(file.pages[index])
        return None

    def _stored(self, place: PageId | StateId | HostId) -> list[int]:
        match place:
            case HostId():
                held = self._host.get(place)
            case StateId():
                held = self._states.get(place)
            case _:
                held = self._pages[place]
        if held is None:
            raise EngineError(f"{place} is read and holds nothing")
        return held
