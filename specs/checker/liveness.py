"""`eventually`, on the graph of all states: a cycle that fairness allows and that never reaches what must be reached.

An answer about a class of groups is a separate action (with any label). Weak fairness: an action that stays
possible is taken in the end. Strong: one that is possible again and again is. An answer that changes nothing is a
stutter, and a run may stutter forever (implicit stuttering) if fairness asks nothing of it: then every
action that it owes is impossible. Answers that no run has forever (`Model.finite`) are in no cycle.

A cycle is looked for in the strongly connected components of the graph without the transitions that reach the
property and without states in which the run is over. In a component, an action that weak fairness asks for
must be taken, or impossible somewhere; one that strong fairness asks for must be taken, or the states in which it is
possible are left out and the rest is searched again.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fsm.machines.table import Fairness
from specs.engine.graph import Graph
from specs.model import Answer, Model


class Duties(NamedTuple):
    """Per answer, by its number, what fairness asks for."""

    action: Sequence[int]
    """The action that it is, or −1 where it is owed nothing."""
    strong: frozenset[int]
    """The actions under strong fairness; the others are under weak."""
    finite: Sequence[bool]
    """Whether no run has it forever."""

    @classmethod
    def of(cls, answers: Sequence[Answer], model: Model) -> "Duties":
        """The duties of a model's answers."""
        actions: dict[tuple[str, object], int] = {}
        action: list[int] = []
        strong: set[int] = set()
        for answer in answers:
            fairness = model.fairness[answer.name]
            if fairness is Fairness.NONE:
                action.append(-1)
                continue
            number = actions.setdefault((answer.name, answer.group_class), len(actions))
            action.append(number)
            if fairness is Fairness.STRONG:
                strong.add(number)
        return cls(action, frozenset(strong), [answer.name in model.finite for answer in answers])


class Lasso(NamedTuple):
    """A way of not reaching: from the initial state to `start`, then round and round."""

    start: int
    cycle: tuple[int, ...]
    """Answers; none if the run stays in `start` forever."""


Arrives = Callable[[int, int], bool]
"""Whether a step, an answer and where it leads, is where a way should end."""


class _Without:
    """The graph without what reaches the property: states that a run which never reaches it may stay in."""

    def __init__(self, graph: Graph, duties: "Duties", bit: int) -> None:
        self.graph, self.duties, self.bit = graph, duties, bit

    def steps(self, state: int) -> Iterable[tuple[int, int]]:
        """The answers, and where they lead, that a cycle may have."""
        graph, finite = self.graph, self.duties.finite
        for transition in graph.transitions_of(state):
            answer, target = graph.answers[transition], graph.targets[transition]
            if target != state and not finite[answer] and not graph.reached[transition] >> self.bit & 1:
                yield answer, target

    def owed(self, state: int) -> set[int]:
        """The actions that fairness asks for and that are possible in a state: those that change something."""
        graph, action = self.graph, self.duties.action
        return {
            action[graph.answers[transition]]
            for transition in graph.transitions_of(state)
            if graph.targets[transition] != state and action[graph.answers[transition]] >= 0
        }


def find_lasso(graph: Graph, duties: "Duties", bit: int) -> Lasso | None:
    """A fair run that never reaches the property of that bit, one that leaves the shortest way early; or None."""
    without = _Without(graph, duties, bit)
    best: Lasso | None = None
    states = [state for state in range(graph.states) if not graph.over[state]]
    for state in states:
        if not without.owed(state):
            best = Lasso(state, ())
            break
    pending = [states]
    while pending:
        for component in _components(without, pending.pop()):
            lasso, rest = _fair_cycle(without, component)
            if rest:
                pending.append(rest)
            if lasso is not None and (best is None or lasso.start < best.start):
                best = lasso
    return best


def _components(without: _Without, states: Sequence[int]) -> Iterable[list[int]]:
    """The strongly connected components of more than one state among `states` (Tarjan, without recursion)."""
    size = without.graph.states
    order, low = array("q", [-1]) * size, array("q", [0]) * size
    inside = bytearray(size)
    for state in states:
        inside[state] = 1
    stack: list[int] = []
    count = 0
    for root in states:
        if order[root] >= 0:
            continue
        order[root] = low[root] = count
        count += 1
        stack.append(root)
        work = [(root, iter(list(without.steps(root))))]
        while work:
            state, following = work[-1]
            for _, target in following:
                if not inside[target]:
                    continue
                if order[target] < 0:
                    order[target] = low[target] = count
                    count += 1
                    stack.append(target)
                    work.append((target, iter(list(without.steps(target)))))
                    break
                low[state] = min(low[state], order[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[state])
                if low[state] == order[state]:
                    component = [stack.pop()]
                    while component[-1] != state:
                        component.append(stack.pop())
                    for member in component:
                        inside[member] = 0
                    if len(component) > 1:
                        yield sorted(component)


def _fair_cycle(without: _Without, component: list[int]) -> tuple[Lasso | None, list[int]]:
    """A fair cycle of a component, or the part of it to search again."""
    members = set(component)
    owed = {state: without.owed(state) for state in component}
    taken = {
        without.duties.action[answer]
        for state in component
        for answer, target in without.steps(state)
        if target in members
    }
    possible = set().union(*owed.values())
    starved = (possible & without.duties.strong) - taken
    if starved:
        return None, [state for state in component if not owed[state] & starved]
    always = set.intersection(*owed.values())
    if always - taken - without.duties.strong:
        return None, []
    return Lasso(component[0], tuple(_cycle(without, component, owed))), []


def _cycle(without: _Without, component: list[int], owed: dict[int, set[int]]) -> list[int]:
    """The answers of a cycle from the component's first state that keeps every duty; a short one, not the shortest."""
    start, members = component[0], set(component)
    strong, action = without.duties.strong, without.duties.action
    here, answers = start, list[int]()
    taken: set[int] = set()
    constant = set(owed[start])
    visited = set(owed[start])

    def walk(legs: list[tuple[int, int]]) -> None:
        nonlocal here
        for answer, target in legs:
            answers.append(answer)
            taken.add(action[answer])
            constant.intersection_update(owed[target])
            visited.update(owed[target])
            here = target

    walk(_way(without, members, start, lambda _, target: target == start))
    while unpaid := (constant | (visited & strong)) - taken:
        walk(_way(without, members, here, _pays(without, min(unpaid), owed)))
        if here != start:
            walk(_way(without, members, here, lambda _, target: target == start))
    return answers


def _pays(without: _Without, duty: int, owed: dict[int, set[int]]) -> Arrives:
    """A step that takes the action, or, where weak fairness asks for it, leads to where it is impossible."""
    strong, action = without.duties.strong, without.duties.action
    return lambda answer, target: action[answer] == duty or (duty not in strong and duty not in owed[target])


def _way(without: _Without, members: set[int], start: int, arrives: Arrives) -> list[tuple[int, int]]:
    """The shortest way of at least one step within the component to a step that arrives."""
    came: dict[int, tuple[int, int]] = {}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for answer, target in without.steps(state):
            if target not in members:
                continue
            if arrives(answer, target):
                legs = [(answer, target)]
                while state != start:
                    answer, before = came[state]
                    legs.append((answer, state))
                    state = before
                return legs[::-1]
            if target not in came and target != start:
                came[target] = (answer, state)
                queue.append(target)
    raise AssertionError("a strongly connected component has a way between any two of its states")
