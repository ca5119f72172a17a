"""The demo on screen: a live table for a terminal, plain lines for anything else."""

import time
from collections import deque
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from actors.cli.output import is_terminal, say
from actors.demo.snapshot import OrderState, Snapshot
from store.states import OPEN, State

_COLUMNS = 4
_NEWS_LINES = 10
_BAR = 9
_LINE_EVERY = 1.0  # seconds between plain lines
_STYLES = {
    State.QUEUED: "dim",
    State.RUNNING: "cyan",
    State.WAITING: "blue",
    State.COMPLETED: "green",
    State.FAILED: "red",
    State.TIMED_OUT: "red",
    State.CANCELLED: "yellow",
}


class View(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def tell(self, line: str) -> None: ...

    def show(self, snapshot: Snapshot) -> None: ...


def make_view() -> View:
    return Screen() if is_terminal() else Lines()


class Lines:
    """Each event as it comes, and the counts when they changed, at most once a second."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._last: dict[State, int] = {}
        self._last_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def tell(self, line: str) -> None:
        say(f"{time.monotonic() - self._began:5.1f} s  {line}")

    def show(self, snapshot: Snapshot) -> None:
        for line in snapshot.news:
            self.tell(line)
        counts = snapshot.counts()
        late = time.monotonic() - self._last_at >= _LINE_EVERY
        if counts and counts != self._last and (late or not snapshot.open):
            self._last, self._last_at = counts, time.monotonic()
            under_way = [order.progress for order in snapshot.orders if order.status in OPEN and order.progress]
            progress = f"  ({sum(under_way) / len(under_way):.0%} of {len(under_way)} renders)" if under_way else ""
            self.tell("  ".join(f"{count} {status}" for status, count in counts.items()) + progress)


class Screen:
    """One table of all orders, redrawn in place."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._news: deque[str] = deque(maxlen=_NEWS_LINES)
        self._snapshot = Snapshot((), ())
        self._live = Live(get_renderable=self._draw, refresh_per_second=8, console=Console(highlight=False))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def tell(self, line: str) -> None:
        self._news.append(f"{time.monotonic() - self._began:5.1f} s  {line}")

    def show(self, snapshot: Snapshot) -> None:
        for line in snapshot.news:
            self.tell(line)
        self._snapshot = snapshot

    def _draw(self) -> RenderableType:
        counts = self._snapshot.counts()
        head = Text(f"{time.monotonic() - self._began:5.1f} s  ")
        for status, count in counts.items():
            head.append(f"{count} {status}  ", style=_STYLES[status])
        grid = Table.grid(*(Column(no_wrap=True) for _ in range(_COLUMNS)), padding=(0, 3))
        rows = -(-len(self._snapshot.orders) // _COLUMNS)
        for row in range(rows):
            grid.add_row(*(_cell(order) for order in self._snapshot.orders[row::rows]))
        news = Text("\n".join(self._news), overflow="ellipsis", no_wrap=True)
        return Group(head, Text("P poster, C caption", style="dim"), grid, "", news)


def _cell(order: OrderState) -> Text:
    """Short enough for four in a narrow terminal: a bar while it is rendered, otherwise its state."""
    rendering = order.status is State.WAITING and order.progress is not None
    words = ("█" * round((order.progress or 0) * _BAR)).ljust(_BAR, "·") if rendering else str(order.status)
    return Text.assemble(f"{order.number:>2} {order.item[0].upper()} ", (words.ljust(_BAR), _STYLES[order.status]))
