"""How long one sequence took, without its pauses (behaviour X2). All times in seconds.

The time from the first computed token to the first drawn one is the prompt's, from there to the
last drawn one is prediction's; what passes while the sequence is parked belongs to neither.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Stopwatch:
    arrived: float = 0.0
    prompt_s: float = 0.0
    predicted_s: float = 0.0
    last_pause_s: float = 0.0
    _lap_started: float | None = None
    _drawn_at: float | None = None
    _paused_at: float | None = None
    _pauses_s: float = 0.0

    def start(self, now: float) -> float | None:
        """The sequence takes part in a step; the first time, returns how long it has waited."""
        if self._lap_started is not None:
            return None
        self._lap_started = now
        return now - self.arrived

    def waited_s(self, now: float) -> float:
        """As its client sees it: since its last token, or since it arrived."""
        return now - (self.arrived if self._drawn_at is None else self._drawn_at)

    def draw(self, now: float) -> float:
        """A token was drawn; returns how long it took. A sequence that draws is not paused."""
        self.resume(now)
        lap = self._lap(now)
        if self._drawn_at is None:
            self.prompt_s += lap
        else:
            self.predicted_s += lap
        self._drawn_at = now
        return lap

    def pause(self, now: float) -> None:
        """The sequence is parked, perhaps again before it has resumed."""
        if self._paused_at is None:
            self._paused_at = now

    def resume(self, now: float) -> None:
        if self._paused_at is None:
            return
        self.last_pause_s = now - self._paused_at
        self._pauses_s += self.last_pause_s
        if self._lap_started is not None:
            self._lap_started += now - max(self._paused_at, self._lap_started)
        self._paused_at = None

    def stop(self, now: float) -> None:
        """The sequence ended, perhaps in a pause, perhaps without having drawn anything."""
        self.resume(now)
        if self._drawn_at is None:
            self.prompt_s += self._lap(now)

    def parked_s(self, now: float) -> float:
        """Pauses so far, the present one included."""
        if self._paused_at is None:
            return self._pauses_s
        return self._pauses_s + now - self._paused_at

    def _lap(self, now: float) -> float:
        if self._lap_started is None:
            return 0.0
        lap, self._lap_started = now - self._lap_started, now
        return lap
