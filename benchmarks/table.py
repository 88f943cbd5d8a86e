"""The table of benchmarks, in the order in which they run; a new one is added here."""

from __future__ import annotations

from benchmarks.cases import (
    arrow_batches,
    boosting,
    checkpoint_report,
    import_time,
    memory,
    process_ranks,
    ray_ranks,
    report_call,
    stored_reports,
    tests_on_ranks,
    training_loop,
    whole_process,
)
from benchmarks.harness import Benchmark

__all__ = ["BENCHMARKS"]

BENCHMARKS: tuple[Benchmark, ...] = (
    import_time.BENCHMARK,
    whole_process.BENCHMARK,
    report_call.BENCHMARK,
    stored_reports.BENCHMARK,
    training_loop.BENCHMARK,
    *checkpoint_report.BENCHMARKS,
    *process_ranks.BENCHMARKS,
    *ray_ranks.BENCHMARKS,
    tests_on_ranks.BENCHMARK,
    arrow_batches.BENCHMARK,
    memory.BENCHMARK,
    boosting.BENCHMARK,
)
