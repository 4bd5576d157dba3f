"""The zoo: bugs planted from outside, each of which the simulator has to find.

An oracle that finds nothing proves nothing, unless it is known to find what is there.
"""

from tests.sim.zoo.bug import Bug
from tests.sim.zoo.gangs import GANGS
from tests.sim.zoo.guarding import GUARDING
from tests.sim.zoo.launching import LAUNCHING
from tests.sim.zoo.leaving import LEAVING
from tests.sim.zoo.queueing import QUEUEING
from tests.sim.zoo.unattended import UNATTENDED
from tests.sim.zoo.writing import WRITING

BUGS = (*LAUNCHING, *LEAVING, *WRITING, *GUARDING, *UNATTENDED, *QUEUEING, *GANGS)

__all__ = ["BUGS", "Bug"]
