"""Counters and times that the rooms report, and the figures drawn from them."""

from streamloader.monitor.counters import Counters, TimeSummary
from streamloader.monitor.pipeline import PipelineTimes, pipeline_times

__all__ = ["Counters", "PipelineTimes", "TimeSummary", "pipeline_times"]
