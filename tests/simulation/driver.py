"""One driver: what `app.driver.run_job` puts together, on simulated parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_spark.errors import HermesError
from hermes_spark.host.wire import HostPayload
from hermes_spark.settings import to_json
from hermes_spark.state.journal_reader import JournalReader
from hermes_spark.state.retention import Retention
from hermes_spark.streaming.commit import CommitLog
from hermes_spark.streaming.epochs import DriverClaim
from hermes_spark.streaming.fleet import Fleet
from hermes_spark.streaming.orchestrator import BatchParts, Orchestrator
from hermes_spark.streaming.ownership import CommittedView, DriverPlace
from hermes_spark.streaming.pruning import Pruner
from hermes_spark.streaming.publishing import Publisher
from simulation.objects import SinkDown
from simulation.processes import Process
from simulation.spark import MicroBatches, SimLauncher, SparkFailed

if TYPE_CHECKING:
    from simulation.world import World

HOSTS = 2
QUIET_BATCHES = 40
"""So many batches without an event or an open turn, and whatever is still missing is lost; longer than any approval."""


class Driver:
    """A driver process."""

    def __init__(self, world: World, process: Process, launcher: SimLauncher) -> None:
        self._world, self.process, self.launcher = world, process, launcher
        self._orchestrator: Orchestrator | None = None
        self._quiet = (-1.0, 0)

    def main(self) -> None:
        """Run the query until it fails; then die, as `spark-submit` does."""
        world = self._world
        try:
            self._run()
        except (HermesError, SinkDown, SparkFailed) as exc:
            world.log(self.process.name, "ends:", type(exc).__name__, exc)
        world.kill(self.process)

    def is_done(self, end: str) -> bool:
        """Whether all that the source has (up to its offset line `end`) was handed over, no turn is open, and that for several
        batches: an outcome may be appended while the batch that first sees no open turn asks for positions."""
        since = None if self._orchestrator is None else self._orchestrator.quiet_since
        batches = [int(key.split("/")[1]) for key in self._world.checkpoint.data if key.startswith("commits/")]
        if since is None or not batches or end.encode() not in self._world.checkpoint.data[f"offsets/{max(batches)}"]:
            return False
        if self._quiet[0] != since:
            self._quiet = (since, max(batches))
        return max(batches) >= self._quiet[1] + QUIET_BATCHES

    def _pruner(self) -> Pruner:
        shards = range(self._world.settings.state.shards)
        return Pruner({n: Retention(self._world.root, n, self._world.state) for n in shards}, 0.0)

    def _run(self) -> None:
        world, settings = self._world, self._world.settings
        commits = CommitLog(world.state)
        meta = commits.meta(settings.state.shards)
        last = commits.last()
        claim = DriverClaim.take(world.state, known=0 if last is None else last.epoch)
        payload = HostPayload(
            index=0,
            token="token",
            driver="",
            address="host",
            query_id=meta.query_id,
            state_path=str(world.root),
            settings=to_json(settings).encode(),
        )
        fleet = Fleet(self.launcher, payload, settings.host, DriverPlace(claim.epoch, "driver"))
        view = CommittedView({}, {}) if last is None else CommittedView(last.positions, last.ends)
        try:
            fleet.start(HOSTS, settings.state.shards, view)
            self._orchestrator = Orchestrator(
                BatchParts(
                    settings=settings,
                    epoch=claim.epoch,
                    look=claim.look,
                    settle=lambda batch: None,
                    fleet=fleet,
                    commits=commits,
                    checkpoint=world.checkpoint,
                    publisher=Publisher(
                        settings,
                        meta.query_id,
                        {shard: JournalReader(world.root, shard) for shard in range(settings.state.shards)},
                        [world.sink],
                    ),
                    tasks=2,
                    batch_log=None,
                    pruner=self._pruner(),
                )
            )
            thread = world.loop.thread
            assert thread is not None
            MicroBatches(world.checkpoint, world.workload, world.spark).run(self._orchestrator, thread.sleep)
        except (HermesError, SinkDown, SparkFailed):
            fleet.stop()
            raise
