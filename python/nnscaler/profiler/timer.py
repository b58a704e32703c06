"""Where a step's time goes: fields of the user, and the runtime's communication.

The runtime reports every collective here when the predefined fields are on. On the CPU times are
of the host's clock; a collective that was started asynchronously ends when its future says so, not
when somebody waits for it. On CUDA times are between events, so that nothing but ``stop`` and
reading waits, and only for the events concerned.

Predefined fields, in ms like all fields:

* ``comm``: at least one collective was under way. Collectives that run at the same time count
  once, so this is never more than the time that passed.
* ``exposed``: the program (on CUDA: the stream that computes) waited for communication.
* ``all_reduce(tp)``, ``all_gather(tp)``, ...: a collective of the rank program, by kind and mesh
  axis. ``reduce(dp)``: the gradients, with ``units`` for the scale units. Each from its start to
  its completion; what runs at the same time counts once here too.
"""

import logging
import time
from collections.abc import Callable

import torch

from nnscaler.utils import print_each_rank

_logger = logging.getLogger(__name__)

predefined_on = False  # Read by nnscaler.runtime.comm at every collective.

_COMPACT_AT = 4096  # Spans that are kept before they are added up.


class _Busy:
    """Length of a union of intervals that come ordered by their starts."""

    __slots__ = ("reach", "total")

    def __init__(self):
        self.total, self.reach = 0.0, float("-inf")

    def add(self, start: float, end: float) -> None:
        if end > self.reach:
            self.total += end - max(start, self.reach)
            self.reach = end


class _Field:
    """What is known of one kind of collective; seconds."""

    __slots__ = ("asynchronous", "busy", "calls", "exposed", "nbytes", "sent", "total")

    def __init__(self):
        self.calls = self.nbytes = self.sent = 0
        self.busy, self.total, self.exposed = _Busy(), 0.0, 0.0
        self.asynchronous = False


class _Span:
    """One collective under way. On CUDA ``start`` and ``end`` are events until they are read."""

    __slots__ = ("_work", "cuda", "end", "field", "future", "start")

    def __init__(self, field: _Field, start, end=None, cuda=False, work=None):
        self.field, self.start, self.end, self.cuda, self._work = field, start, end, cuda, work
        self.future = None

    def complete(self) -> bool:
        """Whether it is over, without waiting."""
        return self.end.query() if self.cuda else self.end is not None

    def wait(self) -> None:
        """Blocks the program, or the current stream, until it is over, and books the wait."""
        if self.cuda:
            stream = torch.cuda.current_stream()
            before = _event(stream)
            stream.wait_event(self.end)
            _timer._waits.append((self.field, before, _event(stream)))
        else:
            before = time.perf_counter()
            self._work.wait()
            self.field.exposed += time.perf_counter() - before
        self._work = None

    def _over(self, _future) -> None:
        self.end = time.perf_counter()


def _event(stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


def blocking(name: str, nbytes: int, sent: int, device: torch.device, launch: Callable) -> None:
    """Runs and times ``launch()``, a collective that blocks the program or the current stream."""
    field = _timer._field_of(name, nbytes, sent)
    if device.type == "cuda":
        stream = torch.cuda.current_stream(device)
        _timer._base_event(stream)
        start = _event(stream)
        launch()
        end = _event(stream)
        _timer._waits.append((field, start, end))
        _timer._add(_Span(field, start, end, cuda=True))
    else:
        start = time.perf_counter()
        launch()
        end = time.perf_counter()
        field.exposed += end - start
        _timer._add(_Span(field, start, end))


def started(
    name: str, nbytes: int, sent: int, device: torch.device, launch: Callable, overlaps: bool
) -> _Span:
    """Starts ``launch()``, which returns a Work, and times it until it is complete."""
    field = _timer._field_of(name, nbytes, sent)
    field.asynchronous |= overlaps
    if device.type == "cuda":
        current = torch.cuda.current_stream(device)
        _timer._base_event(current)
        side = _timer._side_stream(device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            start = _event(side)
            work = launch()
            work.wait()  # The side stream waits, not the program.
            span = _Span(field, start, _event(side), cuda=True, work=work)
    else:
        span = _Span(field, time.perf_counter())
        span._work = launch()
        span.future = span._work.get_future().then(span._over)
    _timer._add(span)
    return span


class CudaTimer:
    """Times fields of the user and, with ``predefined``, the runtime's communication.

    There is one timer in a process; every ``CudaTimer(...)`` is it. It works with and without
    CUDA, and with and without torch.distributed.

    Args:
        enable: switches everything; None leaves it, and is on at first.
        predefined: switches the predefined fields; None leaves it, and is off at first.

    Example:
        >>> CudaTimer(enable=True, predefined=True).start("e2e")
        >>> loss = model(batch)
        >>> CudaTimer().stop("e2e")
        >>> CudaTimer().print_all(times=1, rank_only=0)
    """

    instance: "CudaTimer"

    def __new__(cls, enable: bool | None = None, predefined: bool | None = None):
        return _timer

    def __init__(self, enable: bool | None = None, predefined: bool | None = None):
        if self.enabled is None:
            self.enabled = True
        if enable is not None:
            self.enabled = bool(enable)
        if predefined is not None:
            self.predefined = bool(predefined)
        global predefined_on
        predefined_on = self.enabled and self.predefined

    def _reset(self) -> None:
        self.field: dict[str, list] = {}
        self._user: dict[str, float] = {}
        self._comm: dict[str, _Field] = {}
        self._spans: list[_Span] = []
        self._waits: list[tuple] = []  # (field, event before, event after) on CUDA
        self._busy = _Busy()
        self._base = None

    # What the user calls.

    def start(self, field_name: str = "default", predefined: bool = False, stream=None) -> None:
        """Starts a field; starts of one name nest.

        Args:
            field_name: its name.
            predefined: only when the predefined fields are on.
            stream: CUDA stream to measure, otherwise the current one.
        """
        if self._on(predefined):
            self.field.setdefault(field_name, []).append(self._now(stream))

    def stop(self, field_name: str = "default", predefined: bool = False, stream=None):
        """Stops the last start of a field and adds the time since then to it.

        Returns:
            That time in seconds; None when switched off.

        Raises:
            RuntimeError: the field was not started.
        """
        if not self._on(predefined):
            return None
        if not self.field.get(field_name):
            raise RuntimeError(f"Missing start on the field {field_name!r}")
        start = self.field[field_name].pop()
        if isinstance(start, float):
            span = time.perf_counter() - start
        else:
            end = self._now(stream)
            end.synchronize()
            span = start.elapsed_time(end) / 1e3
        self._user[field_name] = self._user.get(field_name, 0.0) + span
        return span

    def duration(self, times: int, field_name: str = "default") -> float:
        """Total time of a field divided by ``times``, in milliseconds.

        Raises:
            RuntimeError: the field was started and not stopped.
        """
        if self.field.get(field_name):
            raise RuntimeError(f"The field {field_name!r} was started and not stopped")
        data = self.field_data
        if field_name not in data:
            _logger.warning("the timer has no field %r; it has %s", field_name, sorted(data))
            return 0.0
        return data[field_name] / times * 1e3

    def clear(self) -> None:
        """Forgets all fields; the switches stay."""
        self._reset()

    @property
    def field_data(self) -> dict[str, float]:
        """Total seconds of each field, the predefined ones included."""
        self._fold(wait=True)
        data = dict(self._user)
        if self._comm or (self.enabled and self.predefined):
            data["comm"] = self._busy.total
            data["exposed"] = sum(field.exposed for field in self._comm.values())
        data.update((name, field.busy.total) for name, field in self._comm.items())
        return data

    def summary(self, times: int = 1) -> dict:
        """All that is known, as plain values; times in ms and counts are divided by ``times``.

        Returns:
            ``{"fields": {name: ms}, "collectives": {name: {"ms", "total_ms", "exposed_ms",
            "calls", "bytes", "sent_bytes", "asynchronous"}}}``. ``ms`` counts what runs at the
            same time once, ``total_ms`` adds every collective's own time. ``bytes`` is the size of
            the whole tensors, ``sent_bytes`` what one rank sends of them at least.
        """
        fields = {name: seconds / times * 1e3 for name, seconds in sorted(self.field_data.items())}
        collectives = {
            name: {
                "ms": field.busy.total / times * 1e3,
                "total_ms": field.total / times * 1e3,
                "exposed_ms": field.exposed / times * 1e3,
                "calls": field.calls / times,
                "bytes": field.nbytes / times,
                "sent_bytes": field.sent / times,
                "asynchronous": field.asynchronous,
            }
            for name, field in sorted(self._comm.items())
        }
        return {"fields": fields, "collectives": collectives}

    def print_all(self, times: int, rank_only: int | None = None) -> None:
        """Prints all fields, rank after rank, and a line for each kind of collective.

        With torch.distributed every rank must call this.

        Args:
            times: divisor, such as the number of steps.
            rank_only: the one rank that prints; None for all.
        """
        summary = self.summary(times)
        lines = [" | ".join(f"{name} : {ms:.2f} ms" for name, ms in summary["fields"].items())]
        for name, field in summary["collectives"].items():
            mode = ", asynchronous" if field["asynchronous"] else ""
            lines.append(
                f"  {name}: {field['ms']:.2f} ms, exposed {field['exposed_ms']:.2f} ms, "
                f"{field['calls']:g} calls, {field['bytes'] / 2**20:.3g} MiB{mode}"
            )
        print_each_rank("\n".join(lines), rank_only)

    def warmup(self, seconds: float = 1.0) -> None:
        """Keeps the device busy with matrix products, so that clocks are up."""
        print(f"> warming up for {seconds:g} second{'' if seconds == 1 else 's'}")
        cuda = torch.cuda.is_available()
        size, device = (4096, torch.cuda.current_device()) if cuda else (512, "cpu")
        a, b = torch.rand(size, size, device=device), torch.rand(size, size, device=device)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.barrier()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            torch.mm(a, b)
            if cuda:
                torch.cuda.synchronize()

    # Within.

    def _on(self, predefined: bool) -> bool:
        return bool(self.enabled and (self.predefined or not predefined))

    @staticmethod
    def _now(stream):
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            return _event(stream or torch.cuda.current_stream())
        return time.perf_counter()

    def _base_event(self, stream) -> None:
        if self._base is None:
            self._base = _event(stream)

    def _side_stream(self, device) -> torch.cuda.Stream:
        index = torch.cuda.current_device() if device.index is None else device.index
        if index not in self._streams:
            self._streams[index] = torch.cuda.Stream(device=index)
        return self._streams[index]

    def _field_of(self, name: str, nbytes: int, sent: int) -> _Field:
        field = self._comm.get(name)
        if field is None:
            field = self._comm[name] = _Field()
        field.calls += 1
        field.nbytes += nbytes
        field.sent += sent
        return field

    def _add(self, span: _Span) -> None:
        self._spans.append(span)
        if len(self._spans) >= _COMPACT_AT:
            self._fold(wait=False)

    def _fold(self, wait: bool) -> None:
        """Adds up spans in the order of their starts; without ``wait``, up to the first under way.

        A rank must not wait in the middle of a step: its partners may need it to go on.
        """
        done = 0
        for span in self._spans:
            if not span.complete():
                if not wait:
                    break
                if span.cuda:
                    span.end.synchronize()
                else:
                    span.future.wait()  # The chained future: its callback has set the end.
            start, end = span.start, span.end
            if span.cuda:
                start, end = (self._base.elapsed_time(event) / 1e3 for event in (start, end))
            span.field.busy.add(start, end)
            span.field.total += end - start
            self._busy.add(start, end)
            done += 1
        del self._spans[:done]
        keep = []
        for field, before, after in self._waits:
            if wait:
                after.synchronize()
            if wait or after.query():
                field.exposed += before.elapsed_time(after) / 1e3
            else:
                keep.append((field, before, after))
        self._waits = keep


_timer: CudaTimer = object.__new__(CudaTimer)
_timer.enabled = None  # Until somebody makes a timer.
_timer.predefined = False
_timer._streams = {}
_timer._reset()
CudaTimer.instance = _timer
