"""An edge over the real engine thread and scheduler, with the deterministic engine under them."""

import contextlib
import time
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families
from typing_extensions import Unpack

from kvalet.core.config import SchedulerConfig
from kvalet.core.plan import StepPlan
from kvalet.engine.fake import FakeEngine, Faults
from kvalet.model.chat_template import ChatTemplate
from kvalet.runtime.service import Service
from kvalet.runtime.stream import Vocabulary
from kvalet.server.app import create_app
from kvalet.server.model import ServedModel
from kvalet.server.settings import ServerSettings
from kvalet.server.state import AppState
from tests.builders import SchedulerOptions, make_config
from tests.server.edge import Edge
from tests.server.fakes import EOS, ByteTokenizer, FakeService

DEFAULTS: SchedulerOptions = {"n_ctx": 256, "max_queue": 1}


class RealEdge(Edge):
    def __init__(self, config: SchedulerConfig, num_pages: int, step_s: float) -> None:
        super().__init__(FakeService())
        tokenizer = ByteTokenizer()

        self.step_s = step_s

        def take_time(plan: StepPlan) -> None:
            time.sleep(self.step_s)

        self.real = Service(
            FakeEngine(num_pages, tokenizer.num_vocab, faults=Faults(execute=take_time)),
            config,
            Vocabulary(tokenizer.token_bytes, frozenset({EOS})),
            check_every_step=True,
        )
        self.real.start()
        template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
        self.state = AppState(ServerSettings())
        self.state.open(ServedModel("real", "", self.real, tokenizer, template))
        self.app = create_app(self.state)

    def metrics(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.get("/metrics").text)
        return {sample.name: sample.value for family in families for sample in family.samples}


@contextlib.contextmanager
def real_edge(
    num_pages: int = 8, step_s: float = 0.0, num_slots: int = 2, **options: Unpack[SchedulerOptions]
) -> Iterator[RealEdge]:
    """Two slots in a pool of eight pages, unless told otherwise: two long requests do not fit
    together. `step_s`: how long a step takes at least; may be changed as it runs."""
    told: SchedulerOptions = {**DEFAULTS, **options}
    edge = RealEdge(make_config(num_slots, **told), num_pages, step_s)
    try:
        yield edge
    finally:
        edge.real.close()
        edge.close()
