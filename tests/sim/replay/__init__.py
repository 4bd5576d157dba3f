"""The same decisions in the daemon: a spot trace is played twice, and compared step by step.

Once a simulated world lives it (world.py): its clouds have in each zone what the trace has at each
moment, at its price, and the daemon's own code, from the reconcile loop to the store, runs a
steered job with a deadline there. And once the adapter of `bench/policy.py` plays it (bench.py), as
it is scored. compare.py says where the two differ first: in what the policy is told, in what it
chooses, or in what comes of that.

The bench decides at each tick of the trace, and everything that it does then takes no time. So that
the daemon decides by the same facts it lives in the bench's time here:

* its clock stands still for the first moments of a tick (`Grid.grain_us`), and in these alone it
  claims jobs, each at every tick; whatever it does for them comes to its end in that time;
* a look, a look at a job on demand, and the most that a refusal or a preemption cools, are a tick;
* machines come up at once and nothing has to be set up, but until the first step passes what the
  trace's job says of a restart; they save at each tick, which costs no time;
* what is taken away is told in time to save, and gone at once; on-demand is granted at once;
* the past is read at each decision, where the daemon reads it once a minute.

And the bench is told no more than the daemon knows: no signal of what is to be had, and no probes.
A checkpoint has no bytes: the daemon knows no price of a way between two regions of one cloud.
"""
