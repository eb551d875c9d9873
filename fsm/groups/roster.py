"""The roster: which group is which.

The state counts groups per class. The roster knows, per class, the groups in order of dispatch, and per group its
prompt, slot, dispatch number and attempts. It obeys the counts and decides nothing: every method carries out a change
that the rules have made. `fsm.groups.book` has checked before that the groups of the change are there.
"""

from collections import deque
from collections.abc import Iterator
from operator import attrgetter

from fsm.events import FailureKind
from fsm.groups.dispatch_order import DispatchOrder
from fsm.rules.changes import Picks
from fsm.state import NONE, GroupClass, starting


class Group:
    """One prompt group in a slot."""

    __slots__ = ("data_failures", "dispatch", "group_class", "infra_failures", "prompt", "slot")

    def __init__(self, prompt: int, slot: int, group_class: GroupClass) -> None:
        self.prompt = prompt
        self.slot = slot
        self.group_class = group_class
        self.dispatch = NONE
        """The number of its current or last attempt; NONE for a spare that waits to start."""
        self.infra_failures = 0
        """Infra failures of this prompt since the last resume."""
        self.data_failures = 0

    def failures(self, kind: FailureKind) -> int:
        """Failed attempts of one kind."""
        return self.infra_failures if kind is FailureKind.INFRA else self.data_failures

    def count_failure(self, kind: FailureKind) -> None:
        """One more failed attempt."""
        if kind is FailureKind.INFRA:
            self.infra_failures += 1
        else:
            self.data_failures += 1


class Roster:
    """All groups in hand, by place and class."""

    def __init__(self) -> None:
        self.again: deque[int] = deque()
        """Prompts to be generated again, ahead of the rest of the data (C3)."""
        self.spares: deque[int] = deque()
        self.queue: deque[int] = deque()
        self.in_flight: dict[int, Group] = {}
        """Per prompt, whether its attempt runs, waits or backs off."""
        self.running: dict[GroupClass, dict[int, Group]] = {}
        """Per class and dispatch number, in order of dispatch."""
        self.waiting: dict[int, Group] = {}
        """Per prompt, in the order in which they came to wait."""
        self.backing_off: dict[int, Group] = {}
        self.ready: dict[GroupClass, DispatchOrder[Group]] = {}
        """Per class, in order of dispatch."""
        self.chunk: dict[int, Group] = {}
        """The chunk in training, in order of selection."""
        self.accumulated: list[Group] = []
        """Selected into the open step by earlier chunks."""
        self.next_dispatch = 0
        self.next_slot = 0

    def pull(self, groups: int, first_prompt: int) -> list[int]:
        """The next prompts of the data; `first_prompt` is the first of those that are not generated again."""
        prompts = [self.again.popleft() for _ in range(min(groups, len(self.again)))]
        prompts.extend(range(first_prompt, first_prompt + groups - len(prompts)))
        return prompts

    def draw_spares(self, groups: int) -> list[int]:
        """The first spares of the pool."""
        return [self.spares.popleft() for _ in range(groups)]

    def start(self, group: Group, group_class: GroupClass) -> None:
        """An attempt of `group` starts, under the next dispatch number."""
        group.group_class = group_class
        group.dispatch = self.next_dispatch
        self.next_dispatch += 1
        self.in_flight[group.prompt] = group
        of_class = self.running.get(group_class)
        if of_class is None:
            self.running[group_class] = {group.dispatch: group}
        else:
            of_class[group.dispatch] = group

    def runs(self, group: Group) -> bool:
        """The attempt of `group` runs: it neither waits nor backs off, and is not over."""
        of_class = self.running.get(group.group_class)
        return of_class is not None and group.dispatch in of_class

    def dispatch(self, group_class: GroupClass, groups: int) -> list[Group]:
        """The first of the queue take new slots and start."""
        started = []
        for _ in range(groups):
            group = Group(self.queue.popleft(), self.next_slot, group_class)
            self.next_slot += 1
            self.start(group, group_class)
            started.append(group)
        return started

    def start_waiting(self, start_weight: int) -> list[Group]:
        """All that wait start, first come first."""
        started = list(self.waiting.values())
        self.waiting.clear()
        for group in started:
            self.start(group, starting(group.group_class, start_weight))
        return started

    def stop_running(self, group: Group) -> None:
        """The attempt of `group` is over."""
        of_class = self.running[group.group_class]
        del of_class[group.dispatch]
        if not of_class:
            del self.running[group.group_class]

    def leave_flight(self, group: Group) -> None:
        """The attempt of `group` is over, and none follows."""
        self.stop_running(group)
        del self.in_flight[group.prompt]

    def wait(self, group: Group, group_class: GroupClass) -> None:
        """`group` waits to start."""
        group.group_class = group_class
        self.in_flight[group.prompt] = group
        self.waiting[group.prompt] = group

    def back_off(self, group: Group, group_class: GroupClass) -> None:
        """`group` waits for the end of its backoff."""
        group.group_class = group_class
        self.backing_off[group.prompt] = group

    def make_ready(self, group: Group, group_class: GroupClass) -> None:
        """`group` is ready."""
        group.group_class = group_class
        of_class = self.ready.get(group_class)
        if of_class is None:
            of_class = self.ready[group_class] = DispatchOrder()
        of_class.add(group.dispatch, group)

    def select(self, picks: Picks) -> list[Group]:
        """The first groups of each class, in order of dispatch, become the chunk in training."""
        selected = []
        for group_class, groups in picks:
            of_class = self.ready[group_class]
            selected += of_class.take(groups)
            if not of_class:
                del self.ready[group_class]
        self.chunk = {group.prompt: group for group in selected}
        return selected

    def evict(self, picks: Picks) -> list[Group]:
        """All groups of the classes leave, in order of dispatch."""
        evicted: list[Group] = []
        for group_class, _ in picks:
            evicted += self.ready.pop(group_class)
        return evicted

    def abort(self, picks: Picks) -> list[Group]:
        """All attempts of the classes stop, in order of dispatch."""
        aborted = []
        for group_class, _ in picks:
            for group in self.running.pop(group_class).values():
                del self.in_flight[group.prompt]
                aborted.append(group)
        return aborted

    def accumulate(self) -> None:
        """The chunk in training is trained."""
        self.accumulated += self.chunk.values()
        self.chunk = {}

    def selected(self) -> list[Group]:
        """Groups of the open step, those of the chunk in training last."""
        return [*self.accumulated, *self.chunk.values()]

    def close(self) -> list[Group]:
        """The open step closes."""
        trained, self.accumulated = self.accumulated, []
        return trained

    def in_order(self) -> list[Group]:
        """Groups in flight: those that run in order of dispatch, then those that wait, then those backing off."""
        running = [group for of_class in self.running.values() for group in of_class.values()]
        running.sort(key=attrgetter("dispatch"))
        return [*running, *self.waiting.values(), *self.backing_off.values()]

    def ready_groups(self) -> Iterator[Group]:
        """Ready groups, in order of dispatch within a class."""
        for of_class in self.ready.values():
            yield from of_class

    def resume(self, start_weight: int) -> list[Group]:
        """C2: in flight starts again in its old slots and order; the open step's groups are ready again."""
        in_flight = self.in_order()
        self.running, self.waiting, self.backing_off, self.in_flight = {}, {}, {}, {}
        for group in in_flight:
            group.infra_failures = group.data_failures = 0
            self.start(group, starting(group.group_class, start_weight))
        for group in self.selected():
            self.make_ready(group, group.group_class)
        self.accumulated, self.chunk = [], {}
        return in_flight

    def regenerate(self) -> list[int]:
        """C3: every prompt in hand goes back ahead of the data, in dataloader order."""
        hands = self._empty()
        self.again = deque(sorted([*self.again, *hands]))
        return hands

    def drop_data(self) -> list[int]:
        """C3: no prompt of the data so far is generated any more."""
        hands = self._empty()
        self.again = deque()
        return hands

    def _empty(self) -> list[int]:
        """Empty every place. Returns the prompts that were in hand, in dataloader order."""
        groups = [*self.in_flight.values(), *self.ready_groups(), *self.selected()]
        hands = sorted([*self.spares, *self.queue, *(group.prompt for group in groups)])
        for place in (self.spares, self.queue, self.in_flight, self.running, self.waiting, self.backing_off):
            place.clear()
        self.ready, self.chunk, self.accumulated = {}, {}, []
        return hands
