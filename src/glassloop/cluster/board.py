"""The board: what an ingress knows about the replicas, and to which of them a call should go.

The ingress writes on it what replicas report and which of them do not answer; the router, which runs on a
thread of Ray Serve in the same process, reads it. All methods may be called from any thread.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from threading import RLock

from glassloop.cluster.messages import Needs, Report, Route
from glassloop.cluster.prefixes import cached_tokens, digests

_SLACK = 4  # branches that a replica with a cached prefix may have more than twice those of the idlest
_NOTED = 20_000  # prefixes that are remembered
_NOTE_SECONDS = 30.0  # that a note counts; then the replica's own report must have it


class Board:
    def __init__(self) -> None:
        self._lock = RLock()
        self._replicas: frozenset[str] = frozenset()
        self._reports: dict[str, Report] = {}
        self._suspects: set[str] = set()
        self._load: Counter[str] = Counter()  # branches of this ingress
        self._others: dict[str, int] = {}  # branches of other ingresses, when a replica last reported
        self._notes: OrderedDict[bytes, dict[str, float]] = OrderedDict()  # digest: replica: when it was sent
        self._turn = count()
        self.on_routed: Callable[[str, str], None] = lambda key, replica: None
        self.on_change: Callable[[], None] = lambda: None

    # ── what is known ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def replicas(self) -> frozenset[str]:
        """The replicas that take requests, as Ray Serve says."""
        return self._replicas

    @property
    def reports(self) -> dict[str, Report]:
        """The latest report of each replica that takes requests and answers."""
        with self._lock:
            return {name: each for name, each in self._reports.items() if name in self._replicas}

    @property
    def suspects(self) -> frozenset[str]:
        """The replicas that do not answer."""
        return frozenset(self._suspects & self._replicas)

    def set_replicas(self, names: Iterable[str]) -> None:
        with self._lock:
            self._replicas = frozenset(names)
            self._suspects &= self._replicas
            for name in self._reports.keys() - self._replicas:
                del self._reports[name], self._others[name]
        self.on_change()

    def report(self, name: str, report: Report) -> None:
        told = report.statistics
        with self._lock:
            self._reports[name] = report
            self._others[name] = max(0, told.waiting + told.running - self._load[name])

    def suspect(self, name: str, is_suspect: bool = True) -> None:
        with self._lock:
            if is_suspect:
                self._suspects.add(name)
            else:
                self._suspects.discard(name)

    def usable(self, needs: Needs | None = None) -> list[str]:
        """Returns the replicas that answer and have what is needed."""
        with self._lock:
            return [
                name
                for name in sorted(self._replicas - self._suspects)
                if (report := self._reports.get(name)) is not None and (needs is None or report.has(needs))
            ]

    def add_load(self, name: str, branches: int) -> None:
        with self._lock:
            self._load[name] += branches
            if not self._load[name]:
                del self._load[name]

    def note(self, name: str, ids: Sequence[int], adapter: str = "") -> None:
        """Remembers that a replica computes, or has computed, these tokens, before it reports so."""
        now = time.monotonic()
        with self._lock:
            for digest in digests(ids, adapter):
                self._notes.setdefault(digest, {})[name] = now
                self._notes.move_to_end(digest)
            while len(self._notes) > _NOTED:
                self._notes.popitem(last=False)

    # ── where to ───────────────────────────────────────────────────────────────────────────────────────────

    def rank(self, route: Route) -> list[str]:
        """Returns the replicas that a call may go to, the best first."""
        if route.only is not None:
            return [route.only] if route.only in self._replicas else []
        with self._lock:
            names = self.usable(route.needs)
            if not names:
                return []
            wanted = digests(route.ids, route.adapter)
            cached = {name: self._cached(name, wanted) for name in names}
            load = {name: self._load_of(name) for name in names}
            turn = next(self._turn) % len(names)
            return by_prefix(names[turn:] + names[:turn], cached, load)

    def _cached(self, name: str, wanted: list[bytes]) -> int:
        oldest, prefixes = time.monotonic() - _NOTE_SECONDS, self._reports[name].prefixes
        known = {
            each
            for each in wanted
            if each in prefixes or self._notes.get(each, {}).get(name, oldest) > oldest
        }
        return cached_tokens(wanted, known)

    def _load_of(self, name: str) -> int:
        """Returns how many branches a replica has: its report is old when a wave of requests comes or ends,
        so those of this ingress are counted here."""
        return self._others[name] + self._load[name]


def by_prefix(names: list[str], cached: Mapping[str, int], load: Mapping[str, int]) -> list[str]:
    """Returns replicas in the order in which they should be tried: the longest cached prefix first, unless
    that replica is clearly busier than the idlest one; of equals the idlest, then the first."""
    least = min(load[name] for name in names)

    def order(name: str) -> tuple[bool, int, int]:
        is_busy = load[name] > 2 * least + _SLACK
        return is_busy, 0 if is_busy else -cached[name], load[name]

    return sorted(names, key=order)


# The router is made by Ray Serve, which gives it a name and no objects: this is where it finds its board.
_BOARDS: dict[tuple[str, str], Board] = {}


def board_of(application: str, deployment: str) -> Board:
    """Returns the board of a deployment of Ray Serve in this process; the first call makes it."""
    return _BOARDS.setdefault((application, deployment), Board())
