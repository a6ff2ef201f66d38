"""Counters and times that the rooms report, and the figures drawn from them."""

from streamloader.monitor.counters import Counters, TimeSummary

__all__ = ["Counters", "TimeSummary"]
