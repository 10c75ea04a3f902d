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
from glassloop.ops.batch import PAGE

_SLACK = 4  # branches that a replica with a cached prefix may have more than twice those of the idlest
_NOTED = 20_000  # pages that are remembered
_NOTE_SECONDS = 30.0  # that a note counts; then the replica's own report must have it


class _Page:
    """A page that requests of this ingress had in their prefix."""

    __slots__ = ("branches", "is_continued", "sent")

    def __init__(self) -> None:
        self.sent: dict[str, float] = {}  # when it was last sent to each replica
        self.branches = 1  # different texts that it is a prefix of
        self.is_continued = False  # whether another page comes after it


class _Call:
    """A job or a question of this ingress that has not ended."""

    __slots__ = ("branches", "replica")

    def __init__(self, branches: int) -> None:
        self.branches = branches
        self.replica: str | None = None  # that has it or was ranked first for it


class Board:
    """The knowledge of an ingress about the replicas of one model: reports, load, cached prefixes."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._replicas: frozenset[str] = frozenset()
        self._reports: dict[str, Report] = {}
        self._suspects: set[str] = set()
        self._calls: dict[str, _Call] = {}  # by key
        self._load: Counter[str] = Counter()  # branches of these calls, by replica
        self._most_load: Counter[str] = Counter()  # the most of them since the last report of a replica
        self._others: dict[str, int] = {}  # branches of other ingresses, when a replica last reported
        self._pages: OrderedDict[bytes, _Page] = OrderedDict()  # by digest, the latest at the end
        self._placed: Counter[str] = Counter()  # pages sent to each replica since its last report
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
                self._placed.pop(name, None)
                self._most_load.pop(name, None)
        self.on_change()

    def report(self, name: str, report: Report) -> None:
        load = report.statistics
        with self._lock:
            self._reports[name] = report
            # The report may be older than the end of a call, which is told at once.
            self._others[name] = max(0, load.waiting + load.running - self._most_load[name])
            self._most_load[name] = self._load[name]
            self._placed[name] = 0

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

    def usable_reports(self) -> list[Report]:
        """Returns the reports of the replicas that answer."""
        with self._lock:
            return [self._reports[name] for name in self.usable()]

    def begin(self, key: str, branches: int = 1) -> None:
        """Notes a call that is about to be sent. It counts as load of a replica until `end`: of the one that
        `rank` puts first, from that moment on, and of the one that `place` names."""
        with self._lock:
            self._calls[key] = _Call(branches)

    def place(self, key: str, name: str | None) -> None:
        """Notes which replica has a call."""
        with self._lock:
            call = self._calls.get(key)
            if call is None or call.replica == name:
                return
            if call.replica is not None:
                self._load[call.replica] -= call.branches
                if not self._load[call.replica]:
                    del self._load[call.replica]
            if name is not None:
                self._load[name] += call.branches
                self._most_load[name] = max(self._most_load[name], self._load[name])
            call.replica = name

    def end(self, key: str) -> None:
        with self._lock:
            self.place(key, None)
            self._calls.pop(key, None)

    def note(self, name: str, ids: Sequence[int], space: str = "") -> None:
        """Remembers that a replica computes, or has computed, these tokens, before it reports so."""
        now = time.monotonic()
        before: list[_Page] = []  # those of the same prefix
        with self._lock:
            if name not in self._replicas:
                return
            for digest in digests(ids, space):
                page = self._pages.get(digest)
                if page is None:
                    page = self._pages[digest] = _Page()
                    if before and before[-1].is_continued:  # here the text leaves the others
                        for each in before:
                            each.branches += 1
                    if before:
                        before[-1].is_continued = True
                self._placed[name] += name not in page.sent
                page.sent[name] = now
                self._pages.move_to_end(digest)
                before.append(page)
            while len(self._pages) > _NOTED:
                self._pages.popitem(last=False)

    # ── where to ───────────────────────────────────────────────────────────────────────────────────────────

    def rank(self, route: Route) -> list[str]:
        """Returns the replicas that a call may go to, the best first. The call counts as load of that one at
        once: of many that come together, all are ranked before the first of them is sent."""
        if route.only is not None:
            return [route.only] if route.only in self._replicas else []
        with self._lock:
            self.place(route.key, None)
            names = self.usable(route.needs)
            if not names:
                return []
            wanted = digests(route.ids, route.space)
            cost = {name: self._cost(name, wanted) for name in names}
            load = {name: self._load_of(name) for name in names}
            turn = next(self._turn) % len(names)
            used = {name: self._used(name) for name in names}
            ranked = by_cost(names[turn:] + names[:turn], cost, load, used)
            self.place(route.key, ranked[0])
            return ranked

    def _cost(self, name: str, wanted: list[bytes]) -> int:
        """Returns what a prompt costs on a replica, in pages: those to compute, and those that are evicted
        for them and may have to be computed again.

        The cost of a page that several texts share is divided between them and as many that are yet to come.
        Otherwise all conversations with one system prompt would go where it was computed first, and fill one
        cache while the others are empty.
        """
        missing = wanted[self._cached(name, wanted) :]
        shared = [self._pages[digest].branches for digest in missing if digest in self._pages]
        computed = len(missing) - len(shared) + sum(1 if each == 1 else 0.5 / each for each in shared)
        room = self._reports[name].statistics.pages_capacity - self._used(name)
        evicted = max(0, len(missing) - max(0, room))
        return round(computed + evicted)

    def _used(self, name: str) -> int:
        """Returns how many pages the cache of a replica has, with those that were sent to it since then."""
        return self._reports[name].statistics.pages + self._placed[name]

    def _cached(self, name: str, wanted: list[bytes]) -> int:
        """Returns how many pages of a prefix a replica has, or will have soon."""
        oldest, prefixes = time.monotonic() - _NOTE_SECONDS, self._reports[name].prefixes

        def is_known(digest: bytes) -> bool:
            page = self._pages.get(digest)
            return digest in prefixes or (page is not None and page.sent.get(name, oldest) > oldest)

        return cached_tokens(wanted, {digest for digest in wanted if is_known(digest)}) // PAGE

    def _load_of(self, name: str) -> int:
        """Returns how many branches a replica has: its report is old when a wave of requests comes or ends,
        so those of this ingress are counted here."""
        return self._others[name] + self._load[name]


def by_cost(
    names: list[str], cost: Mapping[str, int], load: Mapping[str, int], used: Mapping[str, int]
) -> list[str]:
    """Returns replicas in the order in which they should be tried: the cheapest first, unless that replica is
    clearly busier than the idlest one; of equals the idlest, the one with the emptiest cache, the first."""
    least = min(load[name] for name in names)

    def order(name: str) -> tuple[bool, int, int, int]:
        is_busy = load[name] > 2 * least + _SLACK
        return is_busy, 0 if is_busy else cost[name], load[name], used[name]

    return sorted(names, key=order)


# The router is made by Ray Serve, which gives it a name and no objects: this is where it finds its board.
_BOARDS: dict[tuple[str, str], Board] = {}


def board_of(application: str, deployment: str) -> Board:
    """Returns the board of a deployment of Ray Serve in this process; the first call makes it."""
    return _BOARDS.setdefault((application, deployment), Board())
