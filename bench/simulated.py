"""Simulated runs beside live ones of the same requests, in several configurations.

    python -m bench.simulated [--costs FILE] [--rounds 2] [--only NAME] [-m MODEL]

The costs should be of this machine and this model (`kvalet simulate --calibrate`). Rounds of all
configurations follow each other, so that a slow minute does not fall on one alone. Prompts are
random tokens of the lengths that the load says, from the upper half of the vocabulary, where
SmolLM2 has no control tokens. The last line is JSON.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from random import Random
from typing import ClassVar

from rich.console import Console

from kvalet.bench.chats import Chat, ChatState, MomentKind
from kvalet.bench.figures import Figures, counts
from kvalet.bench.harness import FIRST, Case, Played, exit_code, measure
from kvalet.bench.loads import Load, Session
from kvalet.bench.report import Row, Turn, circumstances, comparison, told
from kvalet.bench.target import Where
from kvalet.cli.config import settings
from kvalet.cli.signals import end_on_sigterm
from kvalet.errors import EngineError, KvaletError
from kvalet.settings import changed, show
from kvalet.sim.costs import CostModel
from kvalet.sim.figures import figures_of
from kvalet.sim.grid import Load as SimulatedLoad
from kvalet.sim.run import simulate
from kvalet.sim.scenario import Scenario
from kvalet.sim.workloads import Request

SEED = 1
APART_S = 0.02
ANSWER_S = 1800.0  # answers come at once, when they are whole


def scenario(**values: object) -> Scenario:
    """Of the values that are not the defaults, by name."""
    return changed(Scenario(), **values)


CONFIGURATIONS: dict[str, Scenario] = {
    "ample": scenario(chats=4, tokens=500, ctx_size=4096),
    "four chats": scenario(chats=4),
    "four, largest": scenario(chats=4, preempt_policy="largest", preempt_resume="pass"),
    "four, recomputed": scenario(chats=4, preempt_ram=0, cache_ram=0),
    "eight, 8 slots": scenario(tokens=400, ctx_size=1024, parallel=8),
    "uniform": scenario(workload="uniform", arrivals="poisson", tokens=500),
    "uniform, no copier": scenario(
        workload="uniform",
        arrivals="staggered",
        tokens=400,
        ctx_size=1024,
        preempt_async=False,
        preempt_mirror=False,
    ),
    "heavy": scenario(workload="heavy", tokens=500, parallel=8, preempt_resume="parked"),
    "agents": scenario(workload="agents", arrivals="poisson", chats=4, tokens=500),
    "watermark": scenario(
        chats=6, tokens=400, ctx_size=1024, preempt_trigger="watermark", preempt_policy="smallest"
    ),
}
# One token: a step that only generates would be the first thing the pacing of prompts knows, and a
# simulated server begins without.
WARM_UP = {"prompt": "How are you?", "n_predict": 1, "ignore_eos": True, "cache_prompt": False}


@dataclass(frozen=True, slots=True)
class Live:
    """The live part: a case for every configuration, each on a server of its own."""

    names: tuple[str, ...] = tuple(CONFIGURATIONS)
    POOL: ClassVar[tuple[str, ...]] = ()
    ROUNDS: ClassVar[int] = 2
    needs_own: ClassVar[str] = "simulated servers are compared with those that are started"

    def cases(self, where: Where, number: int, played: Mapping[str, Played]) -> Iterator[Case]:
        for name in self.names:
            flags = tuple(flags_of(CONFIGURATIONS[name]))
            yield Case(name, conversing(load_of(name)), flags, is_fresh=True)

    def rows(self, played: Mapping[str, Played]) -> Iterator[Row]:
        for name, one in played.items():
            begins = [chat.moments[0].at_s for chat in one.chats]
            ends = [chat.moments[-1].at_s for chat in one.chats]
            times: tuple[float | None, float | None] = (None, None)
            if one.chats:
                times = (max(ends) - min(begins), statistics.fmean(ends) - statistics.fmean(begins))
            parks = one.counted.get("n_preempt_total")
            recomputed = one.counted.get("n_recompute_tokens_total")
            yield _row(name, counts(one.chats), *times, parks, recomputed)


def _row(name: str, of_chats: Figures, *values: float | None) -> Row:
    names = ("makespan s", "mean completion s", "parks", "tokens recomputed")
    return Row(name, {**of_chats, **dict(zip(names, values, strict=True))})


def simulated(names: Sequence[str], costs: CostModel) -> Turn:
    def row(name: str) -> Row:
        found = figures_of(simulate(CONFIGURATIONS[name], load_of(name), costs))
        values = (found.makespan_s, found.mean_completion_s, found.parks, found.tokens_recomputed)
        return _row(name, {"chats": found.requests, "complete": found.completed}, *values)

    return Turn({name: row(name) for name in names}, ())


def load_of(name: str) -> tuple[Request, ...]:
    drawn = SimulatedLoad(CostModel()).requests(CONFIGURATIONS[name], SEED)
    return tuple(_playable(request) for request in drawn)


def _playable(request: Request) -> Request:
    """As a real server can be asked it: a model cannot be told to stop before its limit, and
    requests sent at one time arrive in any order."""
    arrival_s = request.arrival_s + APART_S * request.conversation
    return replace(request, arrival_s=arrival_s, max_tokens=request.num_output)


def flags_of(scenario: Scenario) -> Iterator[str]:
    """Of `kvalet serve`."""
    values = scenario.values()
    for item in settings():
        if item.name not in values or values[item.name] is None:
            continue
        flag, value = item.flags[0], values[item.name]
        if item.is_switch:
            yield flag if value else flag.replace("--", "--no-")
        else:
            yield from (flag, show(value))


def conversing(requests: Sequence[Request]) -> Load:
    """At the times at which they arrive in the simulation; a turn waits for the one before it."""
    talks = [list(turns) for _, turns in groupby(requests, lambda one: one.conversation)]

    async def play(session: Session) -> None:
        await session.http.post("/completion", json=WARM_UP)
        models = (await session.http.get("/v1/models")).raise_for_status().json()
        num_vocab: int = models["data"][0]["meta"]["n_vocab"]
        await session.begin()
        start = time.monotonic()
        await asyncio.gather(*(_converse(session, num_vocab, start, talk) for talk in talks))

    return play


async def _converse(
    session: Session, num_vocab: int, start: float, turns: Sequence[Request]
) -> None:
    random, history = Random(turns[0].conversation), list[int]()
    end = 0.0
    for turn in turns:
        await asyncio.sleep(max(start + turn.arrival_s, end + turn.pause_s) - time.monotonic())
        history = history[: turn.num_prompt]
        num_new = turn.num_prompt - len(history)
        history += [random.randrange(num_vocab // 2, num_vocab) for _ in range(num_new)]
        history += await _answer(session, turn, history)
        end = time.monotonic()


async def _answer(session: Session, turn: Request, prompt: Sequence[int]) -> list[int]:
    """Raises EngineError: without it, the conversation cannot go on."""
    chat = Chat(str(turn.conversation), body_of(turn, prompt))
    session.chats.append(chat)
    chat.note(MomentKind.SENT)
    response = await session.http.post("/completion", json=chat.body, timeout=ANSWER_S)
    if response.is_error:
        chat.fail(response.text)
        raise EngineError(chat.problem)
    chat.note(MomentKind.PIECE)
    chat.state, chat.finish_reason = ChatState.DONE, "length"
    tokens: list[int] = response.json()["tokens"]
    return tokens


def body_of(turn: Request, prompt: Sequence[int]) -> dict[str, object]:
    settled = {"ignore_eos": True, "temperature": 0, "return_tokens": True}
    return {"prompt": list(prompt), "n_predict": turn.num_output, **settled}


def main() -> int:
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-m", "--model", help="default: the default model")
    parser.add_argument("--costs", type=Path, help="default: the built-in ones")
    parser.add_argument("--rounds", type=int, default=Live.ROUNDS)
    parser.add_argument("--only", action="append", choices=list(CONFIGURATIONS))
    args = parser.parse_args()
    costs = CostModel.load(args.costs) if args.costs else CostModel()
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"costs: {costs.source}")
    live = Live(tuple(args.only or CONFIGURATIONS))
    rounds = measure(console.print, Where(num_rounds=args.rounds, model=args.model), live)
    said = simulated(live.names, costs)
    both = [{"live": turns[FIRST], "simulated": said} for turns in rounds]
    console.print("", *comparison(both), sep="\n")
    console.print(json.dumps({**circumstances(), "costs": asdict(costs), **told(both)}))
    return exit_code(rounds)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KvaletError as error:
        sys.exit(f"{sys.argv[0]}: {error}")
