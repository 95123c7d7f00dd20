"""What advice is going to do within its budget, in words."""

from __future__ import annotations

from collections.abc import Sequence

from fedpbc.experiments.advice.request import AdviceRequest
from fedpbc.experiments.advice.schedule import Schedule
from fedpbc.text import listed

__all__ = ["left_out_text", "schedule_text", "time_text"]


def time_text(seconds: float) -> str:
    """A time that is only roughly known.

    Example:
        >>> time_text(34.2), time_text(60), time_text(400)
        ('34 s', '60 s', '7 minutes')
    """
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def schedule_text(schedule: Schedule, request: AdviceRequest, jobs: int) -> str:
    """What will be done within the budget, in one line.

    Example:
        >>> schedule = Schedule(300, ("fedavg", "mifa"), 12, 1, 3, True, 90.0, True)
        >>> schedule_text(schedule, AdviceRequest({}, fixed_rounds=True), 2)
        '2 algorithms, up to 12 settings each; then up to 1 of the best and FedAvg with up to 3 \
seeds, with the ceiling: about 90 s of 10 minutes on 2 cores'
    """
    others = min(schedule.finalists, len(schedule.algorithms) - 1)
    ceiling = ", with the ceiling" if schedule.ceiling else ""
    shortened = "" if request.fixed_rounds else f" over {schedule.rounds} rounds"
    compared = f"with up to {schedule.seeds} seeds{ceiling}"
    if request.tuned or schedule.candidates == 1:
        names = listed(list(schedule.algorithms[: others + 1]), others + 1)
        how = "the settings given"
        if not request.tuned:
            how = "the default settings (no time to tune them)"
        what = f"{names} with {how}{shortened}, {compared}"
    else:
        what = (
            f"{len(schedule.algorithms)} algorithms, up to {schedule.candidates} settings each"
            f"{shortened}; then up to {others} of the best and FedAvg {compared}"
        )
    cores = f"on {jobs} core{'' if jobs == 1 else 's'}"
    needed, budget = time_text(schedule.seconds), time_text(60 * request.minutes)
    if schedule.seconds > 60 * request.minutes:
        return f"{what}: about {needed} {cores}, which is more than the budget of {budget}"
    return f"{what}: about {needed} of {budget} {cores}"


def left_out_text(schedule: Schedule, names: Sequence[str]) -> str:
    """Which of the algorithms whose settings were given are not compared, and why these.

    Example:
        >>> schedule = Schedule(300, ("fedavg", "mifa", "fedau"), 1, 1, 3, False, 60.0, False)
        >>> left_out_text(schedule, ["fedavg", "fedpbc", "mifa", "fedau"])
        'no time for fedpbc (the slowest) and fedau (last in the file; how good it is was not \
measured); a larger --minutes takes more'
    """
    slow = [name for name in names if name not in schedule.algorithms]
    last = list(schedule.algorithms[schedule.finalists + 1 :])
    parts = []
    if slow:
        parts.append(f"{listed(slow, len(slow))} (the slowest)")
    if last:
        they = "it is" if len(last) == 1 else "they are"
        names_left_out = listed(last, len(last))
        parts.append(f"{names_left_out} (last in the file; how good {they} was not measured)")
    return f"no time for {' and '.join(parts)}; a larger --minutes takes more" if parts else ""
