"""Every error this package raises, as one tree.

::

    HermesError
    ├── SettingsError            a setting, tool file or command line that cannot be used
    ├── StartError               the job cannot start here (slots, interpreter, Triton, tool schemas)
    ├── ModelError               the model gave no completion
    │   ├── ModelBusy            it refused for load; carries `retry_after_s`
    │   ├── ModelUnavailable     it could not be reached, or is not ready
    │   ├── ModelTimeout         the deadline passed
    │   └── ModelContractError   it answered something the tensor contract does not allow
    ├── StateError               state on disk cannot be used
    │   ├── CheckpointMismatch   Spark's checkpoint and ours, or the settings, do not belong together
    │   ├── JournalCorrupt       a journal file is damaged where no crash can have damaged it
    │   ├── SnapshotDamaged      a snapshot cannot be used; an older one and more of the journal can
    │   ├── StorageFull          no space is left for state
    │   ├── Superseded           a newer driver has taken the checkpoint over
    │   └── Fenced               a newer owner has taken this shard; drop everything held for it
    ├── KafkaError               Kafka did not answer, or refused a record
    ├── HandoffError             a micro-batch could not hand its events over within its bound
    ├── Stopped                  a batch was not begun because the job is ending; no fault
    └── HostError                an agent host failed, or answered what it must not
        ├── HostAbsent           it is not there (yet, or any more); offer again later
        └── HostSilent           it is there and does not answer: it stands still

Errors cross process borders (Spark pickles them), so each one keeps all it knows in `args`.
What a tool or the model does wrong is *data* for the model (`tools.registry.ToolResult`, `messages.Reply.errors`), not an
exception.
"""

from __future__ import annotations


class HermesError(Exception):
    """Base of every error of this package; the text is one sentence that says what to do."""


class SettingsError(HermesError):
    """A setting is unknown, ill-typed or contradicts another. Names the setting and what was expected."""


class StartError(HermesError):
    """The job cannot start in this place. Names what is missing and how to provide it."""


class ModelError(HermesError):
    """The model gave no completion."""


class ModelBusy(ModelError):
    """The model refused for load. Worth repeating after a pause."""

    def __init__(self, message: str, retry_after_s: float = 0.1) -> None:
        super().__init__(message, retry_after_s)
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return str(self.args[0])


class ModelUnavailable(ModelError):
    """The model server cannot be reached, is not ready, or does not hold the model."""


class ModelTimeout(ModelError):
    """No completion arrived before the deadline."""


class ModelContractError(ModelError):
    """The model answered with tensors that its contract does not allow. Repeating does not help."""


class StateError(HermesError):
    """State on disk cannot be used."""


class CheckpointMismatch(StateError):
    """The checkpoint belongs to another query, format, shard count or place in Spark's log."""


class JournalCorrupt(StateError):
    """A journal file is damaged in its middle. Names file, byte offset and remedy."""


class SnapshotDamaged(StateError):
    """A snapshot is not whole, or not of this journal. Names what is wrong; an older one and more of the journal serve."""


class StorageFull(StateError):
    """No space is left on the device that holds the state."""


class Superseded(StateError):
    """A newer driver has claimed this checkpoint; this one must neither commit nor publish any more."""


class Fenced(StateError):
    """A newer owner has sealed this shard; whatever this process holds for it is void."""


class KafkaError(HermesError):
    """Kafka did not answer in time, or refused what it was sent. Starting again mends the first."""


class HandoffError(HermesError):
    """A micro-batch could not hand its events over within its bound."""


class Stopped(HermesError):
    """A batch was not begun because the job is ending. Spark replays it at the next start."""


class HostError(HermesError):
    """An agent host failed, or gave an answer that it must not give."""


class HostAbsent(HostError):
    """An agent host cannot be reached: it has died or has not started yet. Whoever gets this offers again later."""


class HostSilent(HostError):
    """An agent host is there and does not answer: its process stands still. It is ended, and started again."""
