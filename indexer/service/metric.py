"""`/metrics`: what the service counts, by Prometheus' conventions; never a tenant, domain, token or prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from indexer.service.canary import Canary
from indexer.service.feed import ViewFeed
from indexer.service.trouble import census
from router_client.problem import Problem
from router_client.view import LocalView
from router_client.wire import Answer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class Figures:
    """`held`: by what, (how much now, its bound). `cut`: by reason, callers cut off at a bound. `forgotten`: by
    kind, what was given up at a bound."""

    held: Mapping[str, tuple[float, float]]
    cut: Mapping[str, int]
    forgotten: Mapping[str, int]


class ViewCollector:
    """Reads the view's own counters when asked, so that the hot path counts nothing twice."""

    def __init__(
        self,
        view: LocalView,
        feed: ViewFeed,
        figures: Callable[[], Figures],
        canary: Canary,
        orders: Callable[[], Mapping[str, tuple[int, float]]],
    ) -> None:
        self._canary = canary
        self._orders = orders
        self._view = view
        self._feed = feed
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        view, counters = self._view, self._view.counters
        gauges = {
            "kvledger_view_copies": ("Copies held in memory", view.copies),
            "kvledger_view_blocks": ("Different blocks in the prefix index", len(view.index)),
            "kvledger_view_streams": ("Streams followed, registered or not", len(view.streams)),
            "kvledger_view_caught_up": ("Whether the log's end at the start was reached", view.caught_up),
            "kvledger_floor_seconds": ("Lowest bound that can be met", view.floor_ms() / 1_000),
            "kvledger_event_visible_seconds": (
                "Broker time of the newest record to visible here; two clocks, information only",
                (self._feed.state.visible_ms or 0) / 1_000,
            ),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value=float(value))
        counts = {
            "kvledger_applied_records": ("Records of kv.events applied", counters.records),
            "kvledger_applied_block_operations": ("Block operations applied", counters.block_operations),
            "kvledger_undecodable_records": ("Records that could not be read", counters.undecodable),
            "kvledger_stream_faults": ("Records that met a stream wrongly", counters.faults),
            "kvledger_pulses": ("Pulses read", counters.pulses),
            "kvledger_unreadable_pulses": ("Pulses that could not be read", counters.bad_pulses),
            "kvledger_unreadable_signals": ("Signals that could not be read", counters.bad_signals),
            "kvledger_shed_streams": ("Streams given up at the memory bound", counters.shed),
            "kvledger_refused_streams": ("Records of streams above the bound", counters.refused_streams),
            "kvledger_parent_conflicts": ("Copies whose parent isn't their block's", view.index.conflicts),
            "kvledger_feed_reconnects": ("Times a tail had to start over", self._feed.state.reconnects),
        }
        for name, (text, value) in counts.items():
            yield CounterMetricFamily(name, text, value=float(value))
        yield from self._troubles()
        yield from self._bounds()
        yield from self._measured()
        yield from self._ordered()

    def _ordered(self) -> Iterator[Metric]:
        counts = GaugeMetricFamily(
            "kvledger_deletions", "Deletion requests by state: held, open, proven and so on", labels=["state"]
        )
        ages = GaugeMetricFamily(
            "kvledger_deletion_oldest_seconds",
            "Age of the oldest deletion request in each state; two wall clocks, information only",
            labels=["state"],
        )
        for state, (count, oldest_s) in self._orders().items():
            counts.add_metric([state], count)
            ages.add_metric([state], oldest_s)
        yield from (counts, ages)

    def _troubles(self) -> Iterator[Metric]:
        found = census(self._view)
        yield GaugeMetricFamily(
            "kvledger_eligible_streams",
            "Current streams, fenced and closed ones left out",
            value=found.eligible,
        )
        yield GaugeMetricFamily(
            "kvledger_unknown_events",
            "What engines said in their streams' epochs that no hook could read: an alarm",
            value=found.unknown_events,
        )
        streams = GaugeMetricFamily(
            "kvledger_troubled_streams", "Eligible streams that have a trouble", labels=["trouble"]
        )
        for trouble, count in found.streams.items():
            streams.add_metric([trouble.value], count)
        yield streams
        for name, text, counts in (
            ("kvledger_partial_holders", "Holders that may hold more than is known", found.partial_holders),
            ("kvledger_orphans", "Copies without an id: their parent is unknown", found.orphans),
            ("kvledger_unassigned", "Copies of nobody: their domain or profile is unknown", found.unassigned),
        ):
            by_tier = GaugeMetricFamily(name, text, labels=["tier"])
            for tier, count in counts.items():
                by_tier.add_metric([tier.value], count)
            yield by_tier

    def _measured(self) -> Iterator[Metric]:
        canary, gauge = self._canary, self._canary.gauge
        seconds = {
            "kvledger_canary_measured_staleness_seconds": (
                "Largest age of a change of the canary's that this view lacked, lately",
                gauge.measured_ns(),
            ),
            "kvledger_canary_reported_staleness_seconds": (
                "How old this view says that the canary's stream is",
                gauge.reported_ns,
            ),
        }
        for name, (text, value) in seconds.items():
            yield GaugeMetricFamily(name, text, value=float("nan") if value is None else value / 1e9)
        yield GaugeMetricFamily(
            "kvledger_canary_running", "Whether the canary sings", value=float(canary.state == "running")
        )
        yield CounterMetricFamily(
            "kvledger_canary_changes", "Changes of the canary's stream", value=float(gauge.changes)
        )
        yield CounterMetricFamily(
            "kvledger_canary_violations",
            "Times this view said that it was fresher than it was: an alarm",
            value=float(gauge.violations),
        )

    def _bounds(self) -> Iterator[Metric]:
        figures = self._figures()
        forgotten = {**self._view.counters.forgotten, **figures.forgotten}
        held = GaugeMetricFamily("kvledger_held", "What is held in memory, by kind", labels=["kind"])
        bound = GaugeMetricFamily("kvledger_held_bound", "The most that may be held", labels=["kind"])
        for kind, (value, limit) in {**self._view.held(), **figures.held}.items():
            held.add_metric([kind], float(value))
            bound.add_metric([kind], float(limit))
        lost = CounterMetricFamily("kvledger_forgotten", "Given up at a bound, by kind", labels=["kind"])
        for kind, value in forgotten.items():
            lost.add_metric([kind], float(value))
        cut = CounterMetricFamily("kvledger_cut_off", "Callers cut off at a bound", labels=["reason"])
        for reason, value in figures.cut.items():
            cut.add_metric([reason], float(value))
        yield from (held, bound, lost, cut)


class Metrics:
    """One service's metrics."""

    def __init__(
        self,
        view: LocalView,
        feed: ViewFeed,
        figures: Callable[[], Figures],
        canary: Canary,
        orders: Callable[[], Mapping[str, tuple[int, float]]],
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(ViewCollector(view, feed, figures, canary, orders))
        self._outcomes = Counter(
            "kvledger_lookups_total",
            "Lookups by outcome: complete, partial, or the problem's kind",
            ["outcome"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "kvledger_lookup_seconds", "Time in the service", buckets=SECONDS, registry=self._registry
        )

    def lookup(self, found: Answer | Problem, seconds: float | None) -> None:
        """Counts one lookup."""
        if isinstance(found, Problem):
            self.refused(found)
        else:
            self._outcomes.labels("complete" if found.complete else "partial").inc()
        if seconds is not None:
            self._seconds.observe(seconds)

    def refused(self, document: Problem) -> None:
        """Counts a request that ended before the view was asked."""
        self._outcomes.labels(document.kind.value).inc()

    def page(self) -> bytes:
        return generate_latest(self._registry)
