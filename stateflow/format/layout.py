"""The one place that formats paths inside a checkpoint root. Paths are relative to the root, with `/`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from stateflow.errors import UsageError

SLOT_DIGITS = 8
LAST_EPOCH = 99_999_999
EPOCHS = "epochs/"
"""Folder of a job's claims, in the folder of the job."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
# A number of more than 15 digits is nobody's slot: JSON, JavaScript and int64 would each make something else of it.
_SLOT = re.compile(r"(?:.*/)?chk-(\d{8,15})/([^/]+)\Z")
_EPOCH = re.compile(r"(?:.*/)?epochs/(\d{8,15})\Z")
_SEGMENT = re.compile(r"(?:.*/)?statistics/c(\d{8,15})-(\d{1,9})-([0-9a-f]{16})\.jsonl\Z")
_COPY = "copy-"
_COPIED_FILE = re.compile(rf"(?:.*/)?shared/e\d+-c\d+-{_COPY}[^/]+\Z")
_STATE_FILE = re.compile(r"(?:.*/)?(?:shared|staged)/e(\d+)-c(\d+)-[^/]+\Z")
_ID = "[0-9a-f]{32}"
"""An attempt to make a savepoint carries such an id in every name. Names of other people's files do not: looser patterns would
take `state/orders-20261130.csv` for one of a savepoint, and the job `built-orders` for the remains of one."""
_SAVEPOINT_FILE = re.compile(
    rf"(?:state/{_ID}-\d{{6,}}(?:\.\w+)?|tables/.+/g\d{{5,}}-{_ID}(?:-\d+-\d+)?\.parquet"
    rf"|built-{_ID}/(?:shared/e\d+-c\d+-[^/]+|[^/]+-read\.log))\Z"
)
_SAVEPOINT_FOLDER = re.compile(rf"(?:state/|tables/.+/[^/]+/|built-{_ID}/.*|)\Z")


def checked_name(kind: str, name: str) -> str:
    """`name`, if it can stand as one path segment; user-given names never leave their folder."""
    if not _NAME.match(name):
        raise UsageError(
            f"{kind} name {name!r} is not usable: use up to 128 letters, digits, '.', '_' and '-', "
            "starting with a letter or digit"
        )
    return name


@dataclass(frozen=True, slots=True)
class JobLayout:
    """Paths of one job."""

    job: str

    def __post_init__(self) -> None:
        checked_name("job", self.job)

    @property
    def folder(self) -> str:
        return f"{self.job}/"

    @property
    def identity(self) -> str:
        return f"{self.job}/job"

    @property
    def tombstone(self) -> str:
        """The claim of the last epoch there can be: it fences every run for good."""
        return self.epoch(LAST_EPOCH)

    @property
    def epochs(self) -> str:
        return f"{self.job}/{EPOCHS}"

    def epoch(self, epoch: int) -> str:
        return f"{self.epochs}{epoch:0{SLOT_DIGITS}d}"

    @property
    def log(self) -> str:
        """Prefix of every record."""
        return f"{self.job}/chk-"

    def slot(self, slot: int) -> str:
        return f"{self.job}/chk-{slot:0{SLOT_DIGITS}d}/"

    def pending(self, slot: int) -> str:
        return self.slot(slot) + "_pending"

    def metadata(self, slot: int) -> str:
        return self.slot(slot) + "_metadata"

    def dead(self, slot: int, collector: str) -> str:
        return self.slot(slot) + f"_dead-{collector}"

    def doomed(self, slot: int, collector: str) -> str:
        return self.slot(slot) + f"_doomed-{collector}"

    @property
    def shared(self) -> str:
        return f"{self.job}/shared/"

    @property
    def staged(self) -> str:
        return f"{self.job}/staged/"

    def shared_file(self, epoch: int, slot: int, unique: str, suffix: str) -> str:
        return f"{self.job}/shared/e{epoch}-c{slot}-{unique}{suffix}"

    def shared_copy(self, epoch: int, slot: int, unique: str, suffix: str) -> str:
        """A file that was copied from elsewhere, such as a savepoint."""
        return self.shared_file(epoch, slot, f"{_COPY}{unique}", suffix)

    def staged_file(self, epoch: int, slot: int, unique: str, suffix: str) -> str:
        return f"{self.job}/staged/e{epoch}-c{slot}-{unique}{suffix}"

    @property
    def pins(self) -> str:
        return f"{self.job}/pins/"

    def pin(self, pin_id: str) -> str:
        return f"{self.job}/pins/{pin_id}"

    @property
    def control(self) -> str:
        return f"{self.job}/control/"

    def stop_request(self, epoch: int) -> str:
        return f"{self.job}/control/stop-{epoch:0{SLOT_DIGITS}d}"

    def heartbeat(self, epoch: int) -> str:
        return f"{self.job}/control/heartbeat-{epoch:0{SLOT_DIGITS}d}"

    @property
    def progress_of_runs(self) -> str:
        """Prefix of what every run has reported."""
        return f"{self.job}/control/progress-"

    def progress(self, epoch: int) -> str:
        return f"{self.progress_of_runs}{epoch:0{SLOT_DIGITS}d}"

    def lineage(self, epoch: int) -> str:
        return f"{self.job}/control/lineage-{epoch:0{SLOT_DIGITS}d}"

    @property
    def scheduled_runs(self) -> str:
        return f"{self.job}/scheduled/"

    def scheduled(self, dag_run: str, task: str) -> str:
        """What is known of one task of one DAG run; both may hold any characters, so they are hashed."""
        unique = hashlib.sha256(f"{dag_run}\n{task}".encode()).hexdigest()[:32]
        return f"{self.scheduled_runs}{unique}"

    @property
    def replays(self) -> str:
        return f"{self.job}/replays/"

    def replay_report(self, name: str) -> str:
        """The report of a replay that was kept under this name."""
        return f"{self.replays}{checked_name('report', name)}"

    @property
    def statistics(self) -> str:
        return f"{self.job}/statistics/"

    def statistics_segment(self, first_slot: int, lines: int, xxh3: str) -> str:
        """Named by what is in it: it never becomes anything else."""
        return f"{self.job}/statistics/c{first_slot:0{SLOT_DIGITS}d}-{lines}-{xxh3}.jsonl"


SAVEPOINTS = "_savepoints"
"""Folder of a root that holds the savepoints which were given no other place; no job can have this name."""
SAVEPOINT_METADATA, SAVEPOINT_CLAIM = "_metadata", "_claimed"
SAVEPOINT_STATE, SAVEPOINT_TABLES = "state/", "tables/"
SAVEPOINT_BUILT = "built-"
"""Prefix of the folders of unfinished savepoints: they hold state for the tables, and go when these are done."""


def default_savepoint(job: str, name: str) -> str:
    """Path of a savepoint's folder inside a root; every file of a savepoint is relative to its folder."""
    return f"{SAVEPOINTS}/{checked_name('job', job)}/{checked_name('savepoint', name)}"


def savepoint_state_file(attempt: str, number: int, suffix: str) -> str:
    """A state file, or a container of several, of a native savepoint; no two attempts to make one share a name."""
    return f"{SAVEPOINT_STATE}{attempt}-{number:06d}{suffix}"


def savepoint_table_file(operator: str, state: str, first: int, unique: str) -> str:
    """A Parquet file of a canonical savepoint, beginning at key group `first`."""
    return f"{SAVEPOINT_TABLES}{operator}/{state}/g{first:05d}-{unique}.parquet"


def is_savepoint_file(path: str) -> bool:
    """Whether a path in a savepoint's folder has a name that only its files have: others are not ours to delete."""
    return _SAVEPOINT_FILE.match(path) is not None


def is_savepoint_folder(path: str) -> bool:
    """Whether a path in a savepoint's folder, with its `/`, is that of a folder with its files, or that folder itself (empty)."""
    return _SAVEPOINT_FOLDER.match(path) is not None


REPLAY_PREFIX = "replay-"
"""Prefix of the folders of a root in which replays keep what they write; they go when the replay ends."""


def replay_owner(folder: str) -> str:
    """The file that says whose replay a folder is: it comes first, and goes last."""
    return f"{folder}/replay"


def probe_key(unique: str) -> str:
    """A key beside the jobs, for finding out whether a store's `create` can be trusted."""
    return f"probe-{unique}"


def slot_of(path: str) -> tuple[int, str] | None:
    """`(slot, name)` of an object in a record's folder."""
    match = _SLOT.match(path)
    return (int(match[1]), match[2]) if match else None


def epoch_of(path: str) -> int | None:
    """The epoch that a claim's path names."""
    match = _EPOCH.match(path)
    return int(match[1]) if match else None


def segment_of(path: str) -> tuple[int, str] | None:
    """`(lines, xxh3)` of a segment of the history."""
    match = _SEGMENT.match(path)
    return (int(match[2]), match[3]) if match else None


def first_slot_of(path: str) -> int:
    """The lowest slot of a segment of the history; 0 when the name does not say so."""
    match = _SEGMENT.match(path)
    return int(match[1]) if match else 0


def is_copy(path: str) -> bool:
    """True for a state file that was copied from elsewhere: its bytes may be somebody else's."""
    return _COPIED_FILE.match(path) is not None


def origin_of(path: str) -> tuple[int, int] | None:
    """`(epoch, slot)` of the writer of a state file or staged file: its name carries them."""
    match = _STATE_FILE.match(path)
    return (int(match[1]), int(match[2])) if match else None
