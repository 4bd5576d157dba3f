"""The daemon's log, which tells of every fault, is not what a batch is about."""

from __future__ import annotations

import logging

import structlog


def quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
