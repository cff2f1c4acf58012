"""Every threshold of the verdicts, in one place, with its reason. Nothing else in this package decides by number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

MIB = 1 << 20

_SMALLEST_GROWTH: Mapping[str, float] = {
    "kernel_stack": MIB,  # 16 KiB for each thread: 64 threads
    "page_tables": MIB,  # 1 MiB of them maps 512 MiB
    "sock": MIB,
    "threads": 20,
    "fds": 50,
    "percent": 1,
}


@dataclass(frozen=True, slots=True)
class Rules:
    """What it takes to be called a leak. Times in seconds, growth in the unit of the series."""

    shortest_span_s: float = 1800
    """Less is "too short to tell": services warm up for minutes, and a garbage collector needs its first cycles."""
    fewest_samples: int = 40
    """Fewer leave less than two for each of the windows whose floors are compared."""
    smallest_growth: float = 4 * MIB
    """Growth of the floor over the time looked at. Below that, allocators' slack and per-thread arenas."""
    smallest_growth_of: Mapping[str, float] = field(default_factory=lambda: _SMALLEST_GROWTH)
    """The same for kinds that are small by nature, or are no bytes."""
    smallest_growth_share: float = 0.01
    """And of what is held: 1 %, the noise of large heaps."""
    windows: int = 48
    """Windows for floors, at most: each then has at least about ten buckets of a full series."""
    fewest_windows: int = 8
    """Windows of at least one cycle that a leak must be seen in. Slopes of fewer points have no useful interval."""
    fewest_days: int = 4
    """The same where the cycle is a day or more: two days say what one day was like, four say it goes on."""
    floor_quantile: float = 0.1
    """The floor of a window: not the least value, so that one wrong sample is none."""
    level_leak: float = 0.996
    """The slope's interval at this confidence must be above zero for a leak. Four parts are tried: 99 % in all."""
    level_suspect: float = 0.90
    """The same for a suspicion."""
    rounds: int = 4
    """The span is cut into as many rounds, and the floor has to rise in each: repeated suspicion, one miss resets."""
    least_round: float = 0.1
    """A round that rises by less than this share of the mean rise is a miss; a last one that rises by less than this
    share of the largest has stopped."""
    deceleration: float = 0.4
    """Rise of the last round / that of the rounds before (or of the part / that before it): below, it saturates, or is
    a warm-up that is not over."""
    curve_gain: float = 0.2
    """A rise that dies away must explain this share of what a line leaves: below, a curve is drawn through noise."""
    climb_falls: float = 0.1
    """All falls of the floor / all its rises: a walk of a dozen steps is hardly ever below, a leak in bursts is."""
    climb_steps: float = 6
    """As many equal steps as the rises make up for, (sum)^2 / sum of squares: three deploys make three."""
    fewest_steps: float = 4
    """Fewer, counted so, are what deploys or larger jobs make. Noise counts as steps too, so little is lost."""
    plain_rise: float = 8
    """From this many times its noise on, a rise whose interval holds zero is uneven rather than small."""
    record: float = 0.5
    """Growth that only the later part shows must pass all that was before by this share of itself: else it may be
    one of the ups and downs already seen."""
    suffixes: tuple[float, ...] = (1.0, 0.7, 0.5, 0.35)
    """Parts of the series that are judged, all of them ending now: a leak can begin with a deploy."""
    cycle_strength: float = 0.4
    """Autocorrelation from which a repetition is a cycle."""
    negligible_cycle: float = 6
    """A line that rises by more than this many swings of the cycle is clear without minding the cycle."""
    least_coverage: float = 0.7
    """A window with fewer samples than this share of the usual has no floor."""
    fall_share: float = 0.35
    """A fall by this share of the whole range is a reset: a restart, or a collection of all garbage."""
    short_run_rise: float = 0.2
    """Runs between restarts that each rise by this share, and do so throughout, are suspect however short they are."""
    fewest_short_runs: int = 3
    """As many of them, and all but one."""
    most_restarts: int = 3
    """More resets in one series, unless restarts are known, are a sawtooth."""
    same_height: float = 0.12
    """Resets whose heights differ by less than this share (and at no limit) have a threshold of their own: a
    collector's, not a deploy's."""
    flat_share: float = 0.02
    """A range below this share of the level is flat."""
    flat_growth_share: float = 0.25
    """And so is one below this share of the growth that counts."""
    at_limit: float = 0.985
    """Usage from this share of the limit on is at the limit; a regression line flattens just there."""
    fell_at_limit: float = 0.95
    """A fall from this share of the limit is no collector's: an OOM kill, then a restart."""
    longest_gap: float = 8
    """A hole of as many intervals is said to be a gap."""

    def least_growth(self, kind: str, unit: str, level: float) -> float:
        """Return the floor for growth of a series of this kind at this level."""
        absolute = self.smallest_growth_of.get(kind, self.smallest_growth_of.get(unit, self.smallest_growth))
        return max(absolute, self.smallest_growth_share * abs(level) if unit == "bytes" else 0.0)

    def with_floors(self, span_s: float | None, growth_bytes: float | None) -> Rules:
        """Return rules with other floors; None leaves one as it is."""
        span = self.shortest_span_s if span_s is None else span_s
        return replace(
            self,
            shortest_span_s=span,
            smallest_growth=self.smallest_growth if growth_bytes is None else growth_bytes,
        )


DEFAULT = Rules()
