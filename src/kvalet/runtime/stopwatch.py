"""How long one sequence took, without its pauses (SPEC X2). All times in seconds.

The time from the first computed token to the first drawn one is the prompt's, from there to the
last drawn one is prediction's; what passes while the sequence is parked belongs to neither.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Stopwatch:
    prompt_s: float = 0.0
    predicted_s: float = 0.0
    _lap_started: float | None = None
    _paused_at: float | None = None
    _pauses_s: float = 0.0
    _has_drawn: bool = False

    def start(self, now: float) -> None:
        """The sequence takes part in a step; only the first time counts."""
        if self._lap_started is None:
            self._lap_started = now

    def draw(self, now: float) -> float:
        """A token was drawn; returns how long it took. Who draws is not paused."""
        self.resume(now)
        lap = self._lap(now)
        if self._has_drawn:
            self.predicted_s += lap
        else:
            self._has_drawn = True
            self.prompt_s += lap
        return lap

    def pause(self, now: float) -> None:
        """The sequence is parked. Waiting for admission is no pause."""
        if self._lap_started is not None:
            self._paused_at = now

    def resume(self, now: float) -> None:
        if self._paused_at is None or self._lap_started is None:
            return
        pause = now - self._paused_at
        self._paused_at = None
        self._pauses_s += pause
        self._lap_started += pause

    def stop(self, now: float) -> None:
        """The sequence ended, perhaps in a pause, perhaps without having drawn anything."""
        self.resume(now)
        if not self._has_drawn:
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
