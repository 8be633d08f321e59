"""Whoever runs a conductor: does what it says, a while after it says it, and nothing else."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.operators.moves.application import Site
from tests.operators.moves.moving_world import MovingWorld
from tests.operators.world import FindingError

from shallow_mirror.migration.conductor_ports import Outside
from shallow_mirror.migration.steps import Step

_DELAYS_S = (0.0, 0.0, 1.0, 4.0, 15.0)
_LATELY_S = 30.0
"""A transaction may have ended since the conductor has looked."""
_SAME_S = 30.0
"""A request that is repeated within this time is being done."""


class Operator:
    """`Reports` of every conductor of a world. `on_step`: called when a step begins."""

    def __init__(self, world: MovingWorld) -> None:
        self._world = world
        self._asked_at_s: dict[str, float] = {}
        self.on_step: Callable[[Step], None] = lambda _: None

    def begun(self, wave: str, step: Step) -> None:
        self._world.events.append(f"  {wave}: {step}")
        self._world.note_progress()
        self.on_step(step)

    def done(self, wave: str, step: Step, detail: Mapping[str, Any]) -> None: ...

    def waits(self, outside: Outside) -> None:
        world, request = self._world, outside.request
        world.waits.append(f"{request} ({outside.seen})")
        now_s, asked_at_s = world.clock.monotonic(), self._asked_at_s.get(request)
        if asked_at_s is None or now_s - asked_at_s > _SAME_S:
            self._asked_at_s[request] = now_s
            world.events.append(f"  {outside.wave}: WAITS: {request} ({outside.seen})")
            act = self._action(request, self._site(outside.wave), outside.seen)
            world.processes.at(world.chance.choice(_DELAYS_S), act)

    def says(self, sentence: str) -> None:
        world = self._world
        world.events.append(f"  {sentence}")
        self.obey(sentence)

    def obey(self, sentence: str) -> None:
        """Start who is named in what a conductor or `migrate abort` says, and look at the status of a mirror that it waits for."""
        application = self._world.application
        if found := re.search(r"waits for the mirror (\S+) to .*`shallow-mirror status", sentence):
            self.keep_running(found[1], is_blocked=True)
        for site in application.sites:
            patterns = ", ".join(self._world.patterns(site.wave))
            if (found := re.search(r"point the writers of (.+) to (\w+)$", sentence)) and (
                found[1] == patterns or all(site.has(name) for name in found[1].split(", "))
            ):
                application.start_writers(site, found[2])
            if found := re.search(rf"start the consumers of {', '.join(site.groups)} at (\w+),", sentence):
                application.start_consumers(site, found[1])

    def _site(self, wave: str) -> Site:
        return next(site for site in self._world.application.sites if site.wave == wave)

    def _action(self, request: str, site: Site, seen: str) -> Callable[[], None]:
        """Return what a request asks for."""
        world, application = self._world, self._world.application
        if re.fullmatch(r"stop the writers of .+ at \w+", request):
            return lambda: self._stop(site, with_consumers="consumers of groups" in request)
        if re.fullmatch(r"stop the consumers of groups .+ at \w+", request):
            return lambda: application.stop_consumers(site)
        if found := re.search(r"end the transactions (?:of others )?that are open at (\w+)", request):
            side = found[1]
            return lambda: self._end_txns(side, request, seen)
        if found := re.match(r"(?:start|keep) the mirror ([\w-]+)", request):
            mirror = found[1]
            return lambda: self.keep_running(mirror, is_blocked="shallow-mirror status" in seen)
        if found := re.fullmatch(r"resume what was paused: `shallow-mirror resume (\S+) (.+)`", request):
            file, topics = Path(found[1]).name, shlex.split(found[2])
            return lambda: world.add_control(world.services[file], "resume", topics)
        if found := re.fullmatch(r"put the newest tables of the mirror (\S+) in their place", request):
            mirror = found[1]
            return lambda: world.put_newest_back(mirror)
        if request.startswith("make these offsets committable at "):
            return lambda: self._make_committable(seen)
        if found := re.fullmatch(r"run `shallow-mirror run (\S+)` as a service", request):
            name = Path(found[1]).name
            return lambda: self._run(name)
        raise FindingError(f"nobody knows how to do this: {request} ({seen})")

    def _stop(self, site: Site, *, with_consumers: bool) -> None:
        self._world.application.stop_writers(site)
        for txn in [txn for txn in self._world.application.open_txns if txn.side == site.side]:
            self._world.application.end(txn, is_commit=True)
        if with_consumers and self._world.chance.random() < 0.7:
            self._world.application.stop_consumers(site)

    def delete_offsets(self, text: str) -> int:
        """Delete the offsets of groups that a text names, as `kafka-consumer-groups.sh --delete-offsets`. Return how many."""
        named = re.findall(r" at (\w+), where the group is at .*?--group (\S+) --topic (\S+):(\d+)\)", text)
        for side, group, topic, partition in named:
            self._world.clusters[side].state.groups.offsets.pop((group, (topic, int(partition))), None)
        return len(named)

    def _make_committable(self, seen: str) -> None:
        if not self.delete_offsets(seen) and not self._world.had_older_tables:
            raise FindingError(f"nobody knows how to make offsets committable: {seen}")

    def keep_running(self, mirror: str, *, is_blocked: bool = False) -> None:
        """Start a mirror that does not run. `is_blocked`: end what its status may name, transactions of others at its target."""
        (service,) = (service for service in self._world.services.values() if service.config.mirror == mirror)
        for txn in [txn for txn in self._world.application.open_txns if is_blocked and not txn.is_of_writers]:
            if txn.side == service.config.target.alias:
                self._world.application.end(txn, is_commit=False)
        self._run(service.file)

    def _run(self, file: str) -> None:
        service = self._world.services[file]
        service.is_wanted = True
        self._world.start(service)

    def _end_txns(self, side: str, request: str, seen: str) -> None:
        application = self._world.application
        open_txns = [txn for txn in application.open_txns if txn.side == side]
        if (
            not open_txns
            and " of others " not in request
            and self._world.clock.now_s - application.last_end_s.get(side, 0.0) > _LATELY_S
        ):
            raise FindingError(f"nobody has a transaction open at {side}, but: {seen}")
        for txn in open_txns:
            application.end(txn, is_commit=self._world.chance.random() < 0.5)
