"""What an operator does after a conductor or a mirror has ended with an error: what the error says, no more."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.operators.moves.commands import Command, Commands
from tests.operators.moves.moving_world import MovingWorld, Service
from tests.operators.world import FindingError

from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import (
    ConfigError,
    CopiesDifferError,
    FencedError,
    LateWritesError,
    LogTruncatedError,
    MirrorError,
    OffsetMapConflictError,
    OlderTablesError,
)
from shallow_mirror.operations.forget import forget

_LACKING = re.compile(r"target topic (\S+?):? has fewer partitions \(\d+\) than source topic \S+ \((\d+)\)")
_MISSING = "there is no offset map where `tables` says"
MOST_REMEDIES = 12
NOTHING_TO_DO = "nothing to do"

Remedy = Callable[[Commands, MirrorError, random.Random], str]


def abort(commands: Commands, _error: MirrorError, chance: random.Random) -> str:
    refused = _abort_with_newest_tables(commands, chance)
    # What was handed over in older tables of a mirror is taken back in the newest ones, which are in place again.
    is_done = commands.world.had_older_tables and "nothing is under way that could be aborted" in str(refused)
    if refused is not None and not is_done:
        raise FindingError(f"the abort that an error names is refused: {refused}")
    return NOTHING_TO_DO


def _abort_with_newest_tables(commands: Commands, chance: random.Random) -> MirrorError | None:
    refused = commands.perform("abort")
    if refused is not None and "the table of m is older than the target" in str(refused):
        put_newest_migration_back(commands, refused, chance)
        refused = commands.perform("abort")
    if refused is not None and ("not aborted, because of mirror" in str(refused) or _MISSING in str(refused)):
        put_newest_back(commands, refused, chance)
        refused = commands.perform("abort")
    return refused


def settle(commands: Commands, _error: MirrorError, chance: random.Random) -> str:
    choice: Command = "carry" if chance.random() < 0.5 else "quarantine"
    refused = commands.perform(choice)
    if isinstance(refused, OlderTablesError):
        return put_newest_back(commands, refused, chance)
    if refused is not None and _LACKING.search(str(refused)):
        add_partitions(commands, refused, chance)
        refused = commands.perform(choice)
    if refused is not None and _end_named_txns(commands, refused):
        refused = commands.perform(choice)
    if refused is not None and "nothing was copied: give --quarantine" in str(refused):
        choice = "quarantine"
        refused = commands.perform(choice)
    if refused is not None:
        raise FindingError(f"late writes cannot be settled: {type(refused).__name__}: {refused}")
    return f"migrate late-writes --{choice}"


def quarantine(commands: Commands, _error: MirrorError, _chance: random.Random) -> str:
    refused = commands.perform("quarantine")
    if refused is not None:
        raise FindingError(f"late writes cannot be put into quarantine: {type(refused).__name__}: {refused}")
    return "migrate late-writes --quarantine"


def _end_named_txns(commands: Commands, error: MirrorError) -> bool:
    """End the transactions that an error names, as it says. Return False if it names none."""
    application = commands.world.application
    found = re.search(r"kafka-transactions.sh --bootstrap-server (\w+):9092 abort", str(error))
    txns = [txn for txn in application.open_txns if found is not None and txn.side == found[1]]
    for txn in txns:
        application.end(txn, is_commit=False)
    return bool(txns)


def roll_back(commands: Commands, _error: MirrorError, chance: random.Random) -> str:
    refused = commands.perform("rollback")
    if refused is not None and _MISSING in str(refused):
        return put_newest_back(commands, refused, chance)
    return "migrate rollback" if refused is None else f"migrate rollback: {refused}"


def run(commands: Commands, _error: MirrorError, chance: random.Random) -> str:
    refused = commands.perform("run")
    if refused is not None and _LACKING.search(str(refused)):
        return add_partitions(commands, refused, chance)
    if refused is not None and _MISSING in str(refused):
        return put_newest_back(commands, refused, chance)
    return "migrate run" if refused is None else f"migrate run: {refused}"


def wait(commands: Commands, _error: MirrorError, _chance: random.Random) -> str:
    commands.world.let(20)
    return "waited"


def run_mirror(commands: Commands, error: MirrorError, _chance: random.Random) -> str:
    for mirror in re.findall(r"mirror (\S+) has not registered \S+ yet: run it .*`shallow-mirror status", str(error)):
        commands.operator.keep_running(mirror, is_blocked=True)
    commands.world.let(20)
    return "ran the mirror"


def take_back(commands: Commands, error: MirrorError, chance: random.Random) -> str:
    """Take back what an attempt has handed over, unless another conductor has it under way."""
    if commands.others:
        return await_other(commands, error, chance)
    abort(commands, error, chance)
    return "migrate abort"


def await_other(commands: Commands, error: MirrorError, _chance: random.Random) -> str:
    if not commands.others:
        raise FindingError(f"no other conductor was started: {error}")
    commands.await_others()
    return "waited for the other conductor"


def leave_wave(commands: Commands, error: MirrorError, _chance: random.Random) -> str:
    """Give the move up: somebody has written to the copies."""
    world = commands.world
    named = re.findall(r"(\S+)-(\d+)(?:,| and| hold)", str(error))
    written = {(record.topic, record.partition) for record in world.application.written if record.is_foreign}
    if not any((topic, int(partition)) in written for topic, partition in named):
        if world.had_older_tables:
            return wait(commands, error, _chance)  # with them a mirror does not know what it has written
        raise FindingError(f"nobody else has written there: {error}")
    return NOTHING_TO_DO


def resume(commands: Commands, error: MirrorError, _chance: random.Random) -> str:
    world = commands.world
    for service in world.services.values():
        if service.process is not None and (paused := sorted(world.controls(service).read().paused)):
            world.add_control(service, "resume", paused)
    return "shallow-mirror resume"


def put_newest_back(commands: Commands, error: MirrorError, chance: random.Random) -> str:
    """Put the newest tables of mirrors that are stopped in their place. One that runs ends, and has them put back then; that may
    have happened since the conductor has read the older ones.
    """
    world = commands.world
    older = [service for service in world.services.values() if service.newest is not None]
    if not older and not world.had_older_tables:
        raise FindingError(f"the newest tables are in their place, and are called older: {error}")
    stopped = [service for service in older if not service.is_wanted or service.exchanged_under is service.process]
    for service in stopped:
        _put_newest_back(world, service)
    return "put the newest tables back" if stopped else wait(commands, error, chance)


def put_newest_migration_back(commands: Commands, error: MirrorError, _chance: random.Random) -> str:
    world = commands.world
    if world.newest_migration is None:
        raise FindingError(f"the newest table of the migration is in its place, and is called older: {error}")
    world.migration_table.put_back(world.newest_migration)
    world.newest_migration = None
    return "put the newest table of the migration back"


def nothing(_commands: Commands, _error: MirrorError, _chance: random.Random) -> str:
    return NOTHING_TO_DO


def read_something(commands: Commands, error: MirrorError, _chance: random.Random) -> str:
    """Let groups without committed offsets read. As consumers do, they commit their positions in empty partitions as well."""
    application = commands.world.application
    for site in application.sites:
        cluster = commands.world.clusters[site.side]
        for group in site.groups:
            application.poll(site, site.side, group, 1)
            for topic in application.topics(site, site.side) if not cluster.group_offsets(group) else ():
                cluster.commit_group(group, topic, 0, cluster.bounds(topic, 0)[0])
    commands.world.let(20)
    return "let the groups read"


def read_on(commands: Commands, error: MirrorError, _chance: random.Random) -> str:
    """Start the consumers of groups that have records to read which were not copied."""
    world = commands.world
    for group, side in re.findall(r"group (\S+): [^\n]* Let its consumers read on at (\w+)", str(error)):
        (site,) = (site for site in world.application.sites if group in site.groups)
        world.application.start_consumers(site, side)
    world.let(60)
    return "let the groups read on"


def leave_deleted(commands: Commands, error: MirrorError, chance: random.Random) -> str:
    """Give the wave up: somebody has deleted its topics where it is."""
    world = commands.world
    if not world.deleted:
        raise FindingError(f"nobody has deleted a topic: {error}")
    under_way = world.state().under_way
    return NOTHING_TO_DO if under_way is None else abort(commands, error, chance)


def exclude_later_topics(commands: Commands, error: MirrorError, _chance: random.Random) -> str:
    """Exclude them in the file of the reverse mirror, which is possible while no wave is under way, and start it again."""
    world = commands.world
    (names, mirror), *_ = re.findall(r"(\S+) appeared at \w+ after the move, and mirror (\S+) has copied", str(error))
    if world.state().under_way is not None:
        abort(commands, error, _chance)
    world.exclude(mirror, [names])
    world.left.add(names)
    return f"topics.exclude of {mirror}: {names}"


def delete_offsets(commands: Commands, error: MirrorError, _chance: random.Random) -> str:
    if not commands.operator.delete_offsets(str(error)):
        raise FindingError(f"no offset is named: {error}")
    return "kafka-consumer-groups.sh --delete-offsets"


def reset_offsets(commands: Commands, error: MirrorError, _chance: random.Random) -> str:
    """Set groups to the first record of the partitions that an error names, as `kafka-consumer-groups.sh --reset-offsets`."""
    application = commands.world.application
    for group, offsets, side in re.findall(r"group (\S+) has committed (offset .+?) at (\w+): no record has that", str(error)):
        site = next(site for site in application.sites if group in site.groups)
        application.stop_consumers(site)
        for topic, partition in re.findall(r"of (\S+)-(\d+), whose log ends at", offsets):
            start = commands.world.clusters[side].bounds(topic, int(partition))[0]
            application.reset(group, side, topic, int(partition), start)
        application.start_consumers(site, side)
    return "kafka-consumer-groups.sh --reset-offsets"


def leave_given_up(commands: Commands, error: MirrorError, chance: random.Random) -> str:
    """Give the wave up: it has topics that its mirror does not copy any more, because they are gone somewhere."""
    world = commands.world
    named = set(re.findall(r"does not copy (\S+) \(|(\S+) (?:was|is) (?:deleted at|forgotten)", str(error)))
    topics = {topic.strip(",") for pair in named for topic in pair if topic}
    if not topics or not topics <= world.deleted:
        raise FindingError(f"no topic is gone: {error}")
    world.given_up |= topics
    if world.state().under_way is None:
        return NOTHING_TO_DO
    return abort(commands, error, chance)


def exclude_lost_topics(commands: Commands, error: MirrorError, _chance: random.Random) -> str:
    """Exclude topics in the file of the reverse mirror of which the cluster has lost the records to which it would go back."""
    world = commands.world
    ((names, file),) = re.findall(r"(.+) w(?:as|ere) deleted at east since the move, .*: exclude \w+ in (\S+) ", str(error))
    if world.state().under_way is not None:
        abort(commands, error, _chance)
    topics = names.replace(" and ", ", ").split(", ")
    world.exclude(Path(file).stem, topics)
    world.left |= set(topics)
    return f"topics.exclude in {Path(file).name}: {topics}"


def exclude_deleted_topics(commands: Commands, error: MirrorError, _chance: random.Random) -> str:
    """Exclude copies whose topics were deleted, and which are no part of the wave any more."""
    world = commands.world
    (wave, named), *_ = re.findall(r"waves: (\w+): reverse: has .* and differs in (.+) \(topics\.include\)", str(error))
    topics = named.split(", ")
    if not set(topics) <= world.deleted:
        return wait(commands, error, _chance)  # one that appeared while it was looked
    if world.state().under_way is not None:
        abort(commands, error, _chance)
    world.exclude(f"back-{wave}", topics)
    world.left |= set(topics)
    return f"topics.exclude of back-{wave}: {topics}"


def add_partitions(commands: Commands, error: MirrorError, _chance: random.Random) -> str:
    lacking = _LACKING.findall(str(error))
    for topic, count in lacking:
        for cluster in commands.world.clusters.values():
            if topic in cluster.topic_ids() and cluster.partitions(topic) < int(count):
                cluster.add_partitions(topic, int(count))
    commands.world.let(10)
    return f"added partitions {lacking}"


_REMEDIES: Sequence[tuple[type[MirrorError], str, Remedy]] = (
    (LateWritesError, "--carry` copies these records", settle),
    (CopiesDifferError, "goes back to where the writers were", abort),
    (ConfigError, "finish that with `shallow-mirror migrate rollback FILE`", roll_back),
    (ConfigError, "finish it with `migrate run`", run),
    (ConfigError, "`migrate abort` goes back", abort),
    (ConfigError, "undo the change, or `migrate abort` first", abort),
    (ConfigError, "nothing to roll back", nothing),
    (ConfigError, "was rolled back: it cannot move again with these mirrors", nothing),
    (ConfigError, "nothing is under way that could be aborted", nothing),
    (ConfigError, "Finish it with `shallow-mirror migrate run FILE`", nothing),
    (ConfigError, "Finish it with `shallow-mirror migrate rollback FILE`", nothing),
    (FencedError, "", await_other),
    (LogTruncatedError, "or the topic was deleted and created again", wait),
    (ConfigError, "the table of m is older than the target", put_newest_migration_back),
    (ConfigError, "the tables are older than the target", put_newest_back),
    (OlderTablesError, "", put_newest_back),
    (ConfigError, _MISSING, put_newest_back),
    (ConfigError, "are older than the move: ", put_newest_back),
    (ConfigError, "and leave it out of the wave", leave_given_up),
    (ConfigError, "let it copy it or leave it out of the wave", leave_given_up),
    (ConfigError, "is forgotten (`shallow-mirror forget`)", leave_given_up),
    (ConfigError, "only west has what was moved: exclude it in", exclude_lost_topics),
    (ConfigError, "matches no topic of", leave_deleted),
    (ConfigError, "kafka-consumer-groups.sh --delete-offsets", delete_offsets),
    (ConfigError, "kafka-consumer-groups.sh --reset-offsets", reset_offsets),
    (ConfigError, "appeared at west after the move", exclude_later_topics),
    (ConfigError, "` continues the copy", resume),
    (ConfigError, "yet: run it until `shallow-mirror status", run_mirror),
    (ConfigError, "has to copy exactly the topics of the wave", exclude_deleted_topics),
    (ConfigError, "a move needs topics that only the mirror has written to", leave_wave),
    (ConfigError, "`migrate abort` takes back", take_back),
    (ConfigError, "copies nothing of such a topic: `shallow-mirror status` of its file", wait),
    (ConfigError, "Let its consumers read on at", read_on),
    (ConfigError, "has no group with committed offsets at", read_something),
    (ConfigError, "has fewer partitions", add_partitions),
    (ConfigError, "nothing was copied: give --quarantine", quarantine),
)
"""By kind of error and what its message has to say."""


_EXCLUDED = re.compile(
    r"target topic \S+ \(for (?P<target_of>\S+)\) was deleted.*, or exclude it \(topics\.exclude\)"
    r"|^(?P<source>\S+)-\d+: .* was deleted and created again .* Or exclude the topic \(topics\.exclude\)"
)
"""What a mirror says of deleted topics at either cluster."""


def take_remedy(commands: Commands, error: MirrorError, chance: random.Random) -> str:
    """Take the first remedy that the message names. Raise FindingError where it names none that is known here."""
    for kind, text, remedy in _REMEDIES:
        if isinstance(error, kind) and text in str(error):
            return remedy(commands, error, chance)
    raise FindingError(f"no remedy is known for {type(error).__name__}: {error}") from error


def abort_and_change(commands: Commands) -> None:
    """Abort the wave whose conductor was ended for that, and change the files."""
    world = commands.world
    if commands.others:
        commands.await_others()
    refused = _abort_with_newest_tables(commands, world.chance)
    changes, world.after_abort = world.after_abort, []
    for change in changes:
        change()
    if refused is not None and "nothing is under way" not in str(refused):
        raise FindingError(f"a wave cannot be aborted: {refused}")


def exclude_from_mirror(world: MovingWorld, service: Service, topic: str) -> None:
    """Exclude a deleted topic. While a wave is under way no file may change: it is aborted before.

    Behind its point of no return the topic is forgotten.
    """
    if topic not in world.deleted:
        raise FindingError(f"nobody has deleted {topic}")
    under_way = world.state().under_way
    if topic not in world.recreated:
        if under_way is None:
            _exclude(world, service, topic)
    elif under_way is None:
        _exclude(world, service, topic)
    elif not under_way.can_abort:
        _forget(world, service, topic)
        _note_given_up(world, service, topic)
    elif not world.after_abort:
        assert world.conductor is not None
        world.processes.kill(world.conductor)
        world.after_abort.append(lambda: _exclude(world, service, topic))


def _forget(world: MovingWorld, service: Service, topic: str) -> None:
    config = service.config
    forget(config, TableStorage.to_write(config.table_location, config.tables_writer), [topic], is_applied=True)
    world.events.append(f"{config.mirror}: shallow-mirror forget {topic}")


def _exclude(world: MovingWorld, service: Service, topic: str) -> None:
    world.exclude(service.config.mirror, [topic])
    _note_given_up(world, service, topic)
    world.events.append(f"{service.config.mirror}: topics.exclude: {topic}")


def _note_given_up(world: MovingWorld, service: Service, topic: str) -> None:
    if service.config.source.alias == "west":
        world.left.add(topic)  # a rollback leaves there what has the name of a deleted topic
    elif topic in world.recreated:
        world.given_up.add(topic)


def _copy_recreated(world: MovingWorld, service: Service, topic: str) -> None:
    """Exclude it, or let what has its name now be copied from its first record."""
    if topic not in world.recreated or (world.chance.random() < 0.5 and world.state().under_way is None):
        exclude_from_mirror(world, service, topic)
        return
    if world.chance.random() < 0.5:
        _forget(world, service, topic)
        return
    world.change(service.config.mirror, "read", on_data_loss="continue")
    world.events.append(f"{service.config.mirror}: read.on_data_loss: continue")


def _put_newest_back(world: MovingWorld, service: Service) -> None:
    # They may have been put back while the mirror looked.
    assert service.newest is not None or world.had_older_tables, "the newest tables are in their place, and are called older"
    world.put_newest_back(service.config.mirror)


def _is_recreated(world: MovingWorld, error: MirrorError) -> bool:
    """Return whether a fetch has met a topic that was created again a moment ago: the next start compares its id."""
    return isinstance(error, LogTruncatedError) and error.topic_partition.topic in world.recreated


def mend_mirror(world: MovingWorld, service: Service, error: MirrorError) -> None:
    """Do what the error of a mirror says, before it is started again."""
    text = str(error)
    if isinstance(error, OlderTablesError) or "or the tables of this one are gone" in text:
        _put_newest_back(world, service)
    elif "would be a replication cycle" in text and service.newest is not None:
        _put_newest_back(world, service)  # the older ones have lost that the topics were handed over
    elif isinstance(error, FencedError | OffsetMapConflictError) or _is_recreated(world, error):
        world.events.append(f"{service.config.mirror}: started again")
    elif found := _LACKING.search(text):
        world.clusters[service.config.target.alias].add_partitions(found[1], int(found[2]))
        world.events.append(f"{service.config.mirror}: added partitions to {found[1]}")
    elif found := _EXCLUDED.search(text):
        if found["source"]:
            _copy_recreated(world, service, found["source"])
        else:
            exclude_from_mirror(world, service, found["target_of"])
    else:
        raise FindingError(f"no remedy is known for {service.config.mirror}: {type(error).__name__}: {text}") from error
