"""Which executor each subtask should run on: where its state is, unless others there would make it wait.

Spark runs the tasks behind a shuffle where most of their input is. With a small first batch that is one executor for all
of them; kept there ever after, they would queue for its cores while other executors have nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def spread(homes: Sequence[str], executors: Mapping[str, int]) -> tuple[str, ...]:
    """An executor per subtask. `homes` has where the state of each is cached, empty when nowhere; `executors` the cores
    of those that live. Both are named `executor_HOST_ID`, as Spark names preferred locations.

    A subtask stays while its executor has a core for it, or no more than its share of all subtasks; else it moves to the
    executor that is the least busy, on its own host if it can be, for what is cached is cached for the host.
    """
    if not executors:
        return tuple(homes)
    load = dict.fromkeys(executors, 0)
    every = sum(executors.values())
    most = {name: max(cores, -(-len(homes) * cores // every)) for name, cores in executors.items()}
    found: dict[int, str] = {}
    for number, home in enumerate(homes):
        if home in load and load[home] < most[home]:
            found[number] = home
            load[home] += 1
    for number, home in enumerate(homes):
        if number in found:
            continue
        near = [name for name in load if _host(name) == _host(home) and load[name] < most[name]]
        chosen = min(near or load, key=lambda name: ((load[name] + 1) / executors[name], name))
        found[number] = chosen
        load[chosen] += 1
    return tuple(found[number] for number in range(len(homes)))


def _host(location: str) -> str:
    return location.removeprefix("executor_").rpartition("_")[0]
