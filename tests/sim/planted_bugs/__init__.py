"""Bugs that are planted at run time, each of which the simulator has to find.

An oracle that finds nothing proves nothing, unless it is known to find what is there.
"""

from tests.sim.planted_bugs.bug import Bug
from tests.sim.planted_bugs.gangs import GANGS
from tests.sim.planted_bugs.guards import GUARDING
from tests.sim.planted_bugs.launches import LAUNCHING
from tests.sim.planted_bugs.queue import QUEUEING
from tests.sim.planted_bugs.replacements import LEAVING
from tests.sim.planted_bugs.unattended import UNATTENDED
from tests.sim.planted_bugs.writes import WRITING

BUGS = (*LAUNCHING, *LEAVING, *WRITING, *GUARDING, *UNATTENDED, *QUEUEING, *GANGS)

__all__ = ["BUGS", "Bug"]
