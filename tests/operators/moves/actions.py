"""What operators, writers and consumers do around a migration. An action names things by number, so that it fits any world."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Protocol

from tests.operators.moves.application import Site
from tests.operators.moves.commands import Command, Commands, Kill, Meanwhile
from tests.operators.moves.moving_world import SIDES, SUSPENDED_S, MovingWorld, Service
from tests.operators.moves.remedies import MOST_REMEDIES, NOTHING_TO_DO, abort_and_change, take_remedy
from tests.operators.world import FindingError

from shallow_mirror.migration.steps import Direction, Step

MOST_PARTITIONS = 3


class Action(Protocol):
    def perform(self, commands: Commands) -> None: ...


@dataclass(frozen=True)
class Let:
    """Let time go by: writers write, groups read, mirrors copy."""

    seconds: float

    def perform(self, commands: Commands) -> None:
        commands.world.let(self.seconds)


@dataclass(frozen=True)
class Conduct:
    """A command of the operator, with its remedies until it is done, unless it is killed. `meanwhile`: step, request and action."""

    command: Command
    kill: Kill | None = None
    meanwhile: tuple[tuple[Step | None, int, Action], ...] = ()
    choice: int = 0

    def perform(self, commands: Commands) -> None:
        events = [
            Meanwhile(
                step,
                request,
                lambda action=action: _happens(commands, action),  # type: ignore[misc]
                SUSPENDED_S if isinstance(action, AnotherConductor) else 0.0,
            )
            for step, request, action in self.meanwhile
        ]
        drive(commands, self.command, random.Random(self.choice), self.kill, events)


def _happens(commands: Commands, action: Action) -> None:
    commands.world.events.append(f"    {action}")
    action.perform(commands)


def drive(
    commands: Commands,
    command: Command,
    chance: random.Random,
    kill: Kill | None = None,
    meanwhile: list[Meanwhile] | None = None,
) -> None:
    """Perform a command, take the remedy that its error names, and perform it again, until it is done or killed.

    Raise FindingError where there is no remedy, or none helps.
    """
    world, kills = commands.world, commands.world.kills
    for _ in range(MOST_REMEDIES):
        error = commands.perform(command, kill=kill, meanwhile=meanwhile or ())
        if world.after_abort:
            abort_and_change(commands)
            return
        if error is None or (kill is not None and world.kills > kills):
            return
        kill, meanwhile = None, None
        if commands.others:
            world.events.append(f"waited for the other conductor <- {type(error).__name__}: {error}")
            commands.await_others()
            continue
        remedy = take_remedy(commands, error, chance)
        world.events.append(f"{remedy} <- {type(error).__name__}: {error}")
        if remedy == NOTHING_TO_DO:
            return
        world.remedies += 1
    raise FindingError(f"no remedy helps: {world.events[-1]}")


def _site(world: MovingWorld, number: int) -> Site:
    return world.application.sites[number % len(world.application.sites)]


def _readers_side(world: MovingWorld, site: Site) -> str:
    """Return the cluster whose group offsets count: from the point of no return on, that to which the wave goes."""
    wave = world.state().waves[site.wave]
    if not wave.is_under_way or wave.can_abort:
        return site.side
    return "west" if wave.direction is Direction.MOVE else "east"


def _place(world: MovingWorld, side: str, topic: int, partition: int) -> tuple[str, int] | None:
    """Return an existing partition of a wave; None where no topic is left."""
    names = sorted(name for site in world.application.sites for name in world.application.topics(site, side))
    if not names:
        return None
    name = names[topic % len(names)]
    return name, partition % world.clusters[side].partitions(name)


@dataclass(frozen=True)
class ClientWrites:
    """A client that nobody stops writes: where its wave is, or with `is_elsewhere` to the other cluster."""

    topic: int
    partition: int
    count: int
    is_elsewhere: bool = False

    def perform(self, commands: Commands) -> None:
        world = commands.world
        place = _place(world, "east", self.topic, self.partition)
        if place is None:
            return
        side = world.application.site_of(place[0]).side
        if self.is_elsewhere:
            side = other_side(side)
        if place[0] in world.clusters[side].topic_ids() and place[1] < world.clusters[side].partitions(place[0]):
            world.application.write(side, *place, self.count)


def other_side(side: str) -> str:
    return SIDES[side == SIDES[0]]


@dataclass(frozen=True)
class ClientBegins:
    """A client that nobody stops begins a transaction, and writes in it."""

    topic: int
    partition: int
    is_elsewhere: bool = False

    def perform(self, commands: Commands) -> None:
        world = commands.world
        place = _place(world, "east", self.topic, self.partition)
        if place is None:
            return
        side = world.application.site_of(place[0]).side
        side = other_side(side) if self.is_elsewhere else side
        exists = place[0] in world.clusters[side].topic_ids() and place[1] < world.clusters[side].partitions(place[0])
        if exists and not world.application.is_denied(side, place[0]):
            world.application.write(side, *place, 1, world.application.begin(side, is_of_writers=False))


@dataclass(frozen=True)
class ClientEnds:
    is_commit: bool

    def perform(self, commands: Commands) -> None:
        application = commands.world.application
        others = [txn for txn in application.open_txns if not txn.is_of_writers]
        if others:
            application.end(others[0], is_commit=self.is_commit)


@dataclass(frozen=True)
class WritersComeAgain:
    """Somebody starts the writers again, where they were."""

    wave: int

    def perform(self, commands: Commands) -> None:
        site = _site(commands.world, self.wave)
        commands.world.application.start_writers(site, site.side)


@dataclass(frozen=True)
class ConsumersComeAgain:
    """Somebody starts the consumers again, where their offsets are."""

    wave: int

    def perform(self, commands: Commands) -> None:
        site = _site(commands.world, self.wave)
        commands.world.application.start_consumers(site, _readers_side(commands.world, site))


@dataclass(frozen=True)
class StopConsumers:
    wave: int

    def perform(self, commands: Commands) -> None:
        commands.world.application.stop_consumers(_site(commands.world, self.wave))


@dataclass(frozen=True)
class ResetGroup:
    """Somebody resets a group without members where its wave is read: to a share of the log, in hundredths."""

    group: int
    topic: int
    partition: int
    share: int

    def perform(self, commands: Commands) -> None:
        application = commands.world.application
        site = _site(commands.world, self.group)
        group = site.groups[self.group % len(site.groups)]
        side = _readers_side(commands.world, site)
        topics = application.topics(site, side)
        cluster = commands.world.clusters[side]
        if not topics or group in cluster.state.groups.members:
            return
        topic = topics[self.topic % len(topics)]
        partition = self.partition % cluster.partitions(topic)
        start, end = cluster.bounds(topic, partition)
        application.reset(group, side, topic, partition, start + (end - start) * self.share // 100)


@dataclass(frozen=True)
class CreateTopic:
    """Create a topic that a wave matches, where the wave is; none where it matches no other names."""

    wave: int
    partitions: int

    def perform(self, commands: Commands) -> None:
        site = _site(commands.world, self.wave)
        name = f"{site.letters[0]}2"
        if not commands.world.setting.has_plain_names and name not in commands.world.clusters[site.side].topic_ids():
            commands.world.clusters[site.side].create_topic(name, self.partitions)


@dataclass(frozen=True)
class GrowTopic:
    """Add a partition to a topic, where its wave is or at the other cluster."""

    topic: int
    is_elsewhere: bool = False

    def perform(self, commands: Commands) -> None:
        world = commands.world
        place = _place(world, "east", self.topic, 0)
        if place is None:
            return
        side = world.application.site_of(place[0]).side
        cluster = world.clusters[other_side(side) if self.is_elsewhere else side]
        if place[0] in cluster.topic_ids() and cluster.partitions(place[0]) < MOST_PARTITIONS:
            cluster.add_partitions(place[0], cluster.partitions(place[0]) + 1)


@dataclass(frozen=True)
class DeleteTopic:
    """Somebody deletes a topic where its wave is."""

    topic: int

    def perform(self, commands: Commands) -> None:
        world, application = commands.world, commands.world.application
        place = _place(world, "east", self.topic, 0)
        if place is None:
            return
        side, topic = application.site_of(place[0]).side, place[0]
        if topic in world.clusters[side].topic_ids():
            _delete(world, side, topic)
            world.lost |= {record.value for record in application.written if record.topic == topic}


def _delete(world: MovingWorld, side: str, topic: str) -> None:
    """Delete a topic of a cluster. Transactions of clients that have written to it there end before."""
    application = world.application
    for txn in [txn for txn in application.open_txns if txn.side == side]:
        if any(name == topic for name, _ in txn.writer.sequences):
            application.end(txn, is_commit=False)
    world.clusters[side].delete_topic(topic)
    world.deleted.add(topic)


@dataclass(frozen=True)
class RecreateTopic:
    """Somebody deletes a topic and creates it again: where its wave is, or at the other cluster."""

    topic: int
    is_elsewhere: bool = False

    def perform(self, commands: Commands) -> None:
        world, application = commands.world, commands.world.application
        place = _place(world, "east", self.topic, 0)
        if place is None:
            return
        topic, site = place[0], application.site_of(place[0])
        side = other_side(site.side) if self.is_elsewhere else site.side
        cluster = world.clusters[side]
        if topic not in cluster.topic_ids():
            return
        partitions = cluster.partitions(topic)
        _delete(world, side, topic)
        cluster.create_topic(topic, partitions)
        world.recreated.add(topic)
        world.lost |= {
            record.value
            for record in application.written
            if record.topic == topic and (record.side == side or not self.is_elsewhere)
        }


@dataclass(frozen=True)
class PauseTopic:
    """`shallow-mirror pause` of a topic that its mirror copies."""

    topic: int

    def perform(self, commands: Commands) -> None:
        world = commands.world
        place = _place(world, "east", self.topic, 0)
        if place is not None:
            service = world.copying_service(world.application.site_of(place[0]))
            if service.process is not None:
                world.add_control(service, "pause", [place[0]])


def _service(world: MovingWorld, number: int) -> Service:
    services = [service for service in world.services.values() if service.process is not None]
    return services[number % len(services)]


@dataclass(frozen=True)
class KillMirror:
    """SIGKILL for a mirror, which its supervisor starts again."""

    mirror: int

    def perform(self, commands: Commands) -> None:
        commands.world.kill(_service(commands.world, self.mirror))


@dataclass(frozen=True)
class StopMirror:
    """Stop a mirror, and start it again after a while; 0: when somebody asks for it."""

    mirror: int
    seconds: float

    def perform(self, commands: Commands) -> None:
        world = commands.world
        service = _service(world, self.mirror)
        service.is_wanted = False

        def start() -> None:
            service.is_wanted = True
            world.start(service)

        if self.seconds:
            world.processes.at(self.seconds, start)


@dataclass(frozen=True)
class PutBackTables:
    """Put an older copy of the tables of a mirror in their place, counted from the newest on.

    It is stopped for that. `is_running`: it is not stopped, and its checkpoint stays.
    """

    mirror: int
    copy: int
    is_running: bool = False

    def perform(self, commands: Commands) -> None:
        world = commands.world
        service = _service(world, self.mirror)
        copies = [copy for copy in service.copies if copy.tables.get("offset_map")]
        if not copies:
            return
        if not self.is_running:
            world.kill(service)
        world.keep_newest(service)
        older = copies[-1 - self.copy % len(copies)]
        if self.is_running:
            world.exchange(service, older)
        else:
            service.exchanged_under = None
            world.put_back(service, older)


@dataclass(frozen=True)
class LoseTables:
    """The tables of a mirror that is stopped are missing, as those of a volume that is not mounted."""

    mirror: int

    def perform(self, commands: Commands) -> None:
        world = commands.world
        service = _service(world, self.mirror)
        current = world.copied_tables(service)
        if not current.tables.get("offset_map"):
            return
        world.kill(service)
        world.keep_newest(service)
        service.exchanged_under = None
        world.put_back(service, replace(current, tables={}, checkpoint=None))


@dataclass(frozen=True)
class PutBackMigration:
    """Put an older copy of the table of the migration in its place: what it was before one of the last commands."""

    copy: int

    def perform(self, commands: Commands) -> None:
        world = commands.world
        copies = [copy for copy in world.migration_copies if copy]
        if copies:
            world.newest_migration = world.newest_migration or world.migration_table.copy()
            world.migration_table.put_back(copies[-1 - self.copy % len(copies)])


@dataclass(frozen=True)
class DeleteDenies:
    """Somebody deletes the ACLs that keep the writers from writing."""

    def perform(self, commands: Commands) -> None:
        for cluster in commands.world.clusters.values():
            if cluster.state.acls:
                cluster.state.acls.clear()


@dataclass(frozen=True)
class AnotherConductor:
    """The machine of a conductor stands still for minutes, and somebody performs the command elsewhere, with --take-over."""

    is_rollback: bool

    def perform(self, commands: Commands) -> None:
        commands.begin_another("rollback" if self.is_rollback else "run")


@dataclass(frozen=True)
class Settle:
    """`migrate late-writes`, whether there are any or not."""

    is_carried: bool
    kill: Kill | None = None
    choice: int = 0

    def perform(self, commands: Commands) -> None:
        command: Command = "carry" if self.is_carried else "quarantine"
        drive(commands, command, random.Random(self.choice), self.kill)
