"""The checker on a page: a breadth-first search over a model's functions, one state and one answer at a time.

    found = search(laws, WorldOptions(), properties_of(laws))

It remembers nothing but the states that it has seen, so it is slow, and easy to trust. `specs.checker.explore` finds
the same, which tests compare; it adds `eventually`, bounds, and about ten times the speed.
"""

from typing import NamedTuple

from fsm.rules.laws import Laws
from fsm.state import is_over
from specs.counterexample import ReplayedState, beginning, follow
from specs.model import CORE, CORE_FAULTS, Answer, CrashFrom, Model, WorldOptions, canonical, deadlocked, initial
from specs.properties.kinds import DEADLOCK, REFUSED, Properties, Transition


class Found(NamedTuple):
    """What a plain search found."""

    broken: str | None
    """The first property that is broken; None if all hold."""
    states: int
    """So many were found before the search ended."""
    transitions: int
    counterexample: tuple[Answer, ...] = ()
    """The shortest list of answers that breaks the property; empty for a `sometimes` that never happens."""


class _Broken(Exception):
    """A property is broken, by these answers."""

    def __init__(self, broken: str, answers: tuple[Answer, ...]) -> None:
        super().__init__(broken, answers)
        self.broken, self.answers = broken, answers


class _Search:
    def __init__(self, laws: Laws, world: WorldOptions, properties: Properties, model: Model) -> None:
        self.laws, self.world, self.properties, self.model = laws, world, properties, model
        self.ways: dict[ReplayedState, tuple[Answer, ...]] = {}
        """Per state the answers that led to it first."""
        self.transitions = 0
        self.happened: set[str] = set()

    def run(self) -> None:
        """Find every state, level by level. Raises _Broken."""
        level = [self._begin()]
        while level:
            for node in level:
                self._check(node)
            level = [following for node in level for following in self._expand(node)]
        for prop in self.properties.sometimes:
            if prop.name not in self.happened:
                raise _Broken(prop.name, ())

    def _begin(self) -> ReplayedState:
        try:
            start = ReplayedState(initial(self.laws, self.model))
        except CORE_FAULTS:
            raise _Broken(REFUSED, ()) from None
        self.ways[start] = ()
        if is_over(start.state):
            self._judge(beginning(self.laws, self.model), ())
        return start

    def _check(self, node: ReplayedState) -> None:
        """The state properties."""
        for prop in self.properties.always:
            if not prop.holds(node.state, self.laws):
                raise _Broken(prop.name, self.ways[node])

    def _expand(self, node: ReplayedState) -> list[ReplayedState]:
        """The states that one answer leads to, those seen before left out."""
        laws, world, model, way = self.laws, self.world, self.model, self.ways[node]
        found = []
        for answer in self._possible(node):
            try:
                transition, after = follow(node, laws, world, model, answer)
            except CORE_FAULTS:
                raise _Broken(REFUSED, (*way, answer)) from None
            self.transitions += 1
            if answer.name != "save":
                self._judge(transition, (*way, answer))
            after = after._replace(state=canonical(after.state))
            if after not in self.ways:
                self.ways[after] = (*way, answer)
                found.append(after)
        return found

    def _possible(self, node: ReplayedState) -> list[Answer]:
        try:
            answers = list(self.model.possible(node.state, self.laws, self.world))
        except CORE_FAULTS:
            raise _Broken(REFUSED, self.ways[node]) from None
        if deadlocked(node.state, self.laws, self.world, self.model):
            raise _Broken(DEADLOCK, self.ways[node])
        if self.world.crash is CrashFrom.LAST_CHECKPOINT and not is_over(node.state):
            answers.append(Answer("save"))
        return answers

    def _judge(self, transition: Transition, way: tuple[Answer, ...]) -> None:
        """The properties of transitions."""
        for edge in self.properties.edges:
            if not edge.holds(transition, self.laws):
                raise _Broken(edge.name, way)
        self.happened |= {prop.name for prop in self.properties.sometimes if prop.holds(transition, self.laws)}


def search(laws: Laws, world: WorldOptions, properties: Properties, model: Model = CORE) -> Found:
    """Explore every state that the world can lead to, until a property breaks. Properties of the kind `eventually` are
    not looked at: a search state by state cannot tell."""
    plain = _Search(laws, world, properties, model)
    try:
        plain.run()
    except _Broken as violation:
        return Found(violation.broken, len(plain.ways), plain.transitions, violation.answers)
    return Found(None, len(plain.ways), plain.transitions)
