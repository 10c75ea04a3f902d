"""The tasks of all requests that have not ended, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from glassloop.engine.adapters import LoadedAdapters
from glassloop.engine.scheduler import Scheduler
from glassloop.engine.tasks.task import Asker, Counters, Task
from glassloop.errors import contained

T = TypeVar("T")


class OpenTasks:
    def __init__(self, scheduler: Scheduler, adapters: LoadedAdapters, counters: Counters) -> None:
        self.by_request: dict[Asker, list[Task]] = {}
        self._scheduler = scheduler
        self._adapters = adapters
        self._counters = counters

    def __iter__(self) -> Iterator[Task]:
        """Yields the tasks, which may end meanwhile."""
        return iter([task for tasks in self.by_request.values() for task in tasks])

    def of(self, request: Asker) -> list[Task]:
        return list(self.by_request.get(request, ()))

    def attempt(self, task: Task, action: Callable[[T], None], argument: T) -> None:
        """Runs an action of a task. An error ends this task alone, and a task that has ended gives back what
        it held."""
        try:
            action(argument)
        except BaseException as error:
            task.fail(contained(error, "code of the request"))
        if not task.ended:
            return
        self._scheduler.remove(task)
        tasks = self.by_request[task.request]
        tasks.remove(task)
        if not tasks:
            del self.by_request[task.request]
            task.request.count(self._counters)
        if self._adapters.retired:
            self._adapters.unload(self)
