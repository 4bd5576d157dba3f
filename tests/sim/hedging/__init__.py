"""What asking side by side brings in a job's life, and what it costs.

Traces are played through the daemon's own code in the simulator, as in `tests/sim/replay`, but in
the daemon's own time: a cloud takes as long to refuse as it does, and a machine takes minutes to
come up (world.py). Each case is played once for each arm, with the same seed: one machine at a
time, as shipped, and with several candidates (arms.py). A life is what came of it, by the clouds'
own books (life.py); score.py compares lives of the same case, and cases.py says where cases are
from. The judges of the simulator (tests/sim/oracles) sit in every run.
"""
