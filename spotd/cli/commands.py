"""Every command of `spotctl` by name: where it is defined and its one line of help.

The lines are here, and not only in the modules, so that `spotctl --help` imports no command.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """`spotd.cli.<module>` has the function `attribute`, or a sub-group called `app`."""

    module: str
    attribute: str
    help: str


SECTIONS: dict[str, dict[str, Entry]] = {
    "Jobs": {
        "run": Entry("run", "run", "Submit a job file and follow it until it trains."),
        "ps": Entry("jobs", "ps", "List jobs."),
        "show": Entry("jobs", "show", "Show one job with its machines."),
        "logs": Entry("logs", "logs", "Print a job's output, over all its machines."),
        "results": Entry("results", "app", "Keep what an evaluation of a job's model measured."),
        "drill": Entry("drill", "app", "Strike a running job on purpose; see that it comes back."),
        "ckpt": Entry("checkpoints", "app", "List, verify, fetch and keep what a job has saved."),
        "events": Entry("events", "events", "Print what happened, to one job or to all."),
        "why": Entry("explain", "why", "Say why a job is where it is and what comes next."),
        "plan": Entry("explain", "plan", "Rank where a job file would run. Starts nothing."),
        "advise": Entry("advise", "advise", "Say whether a job is one for spot today, and why."),
        "rightsize": Entry(
            "rightsize", "rightsize", "Foretell a training run's memory, time and cost."
        ),
        "dashboard": Entry(
            "dashboard", "dashboard", "Show jobs, machines and money in a browser. Changes nothing."
        ),
        "wait": Entry("wait", "wait", "Wait until a job ends, or runs."),
        "pause": Entry("job_control", "pause", "Save and give the machines back until resumed."),
        "resume": Entry("job_control", "resume", "Run a paused job from its last checkpoint."),
        "cancel": Entry("job_control", "cancel", "Save, give the machines back and end the job."),
    },
    "Machines and money": {
        "nodes": Entry("jobs", "nodes", "List machines that cost money now, or all of one job."),
        "orphans": Entry("orphans", "app", "List what no job wants, and end it."),
        "image": Entry("image", "app", "Bake images that have setup done; list and remove them."),
        "ssh": Entry("ssh", "ssh", "Log in to a job's machine, or run a command there."),
        "offers": Entry("offers", "offers", "List what the clouds sell now, the cheapest first."),
        "price": Entry("offers", "app", "Show how prices moved, and what guides claim."),
        "stats": Entry("stats", "stats", "Show how machines fared: taken away, refused, up when."),
        "trace": Entry("trace", "trace", "Write what was seen of spot as traces to score on."),
        "providers": Entry(
            "providers", "providers", "List clouds, the notice they give, and egress."
        ),
        "shadow": Entry(
            "shadow", "shadow", "Say what spotd would have saved on another's history."
        ),
        "commitments": Entry(
            "commitments", "commitments", "Say how many machines to commit to, and what to leave."
        ),
        "cost": Entry("cost", "app", "Show what jobs cost, and would have cost on demand."),
    },
    "The daemon": {
        "init": Entry("init", "init", "Print or make what spotd needs in a cloud account."),
        "doctor": Entry("doctor", "doctor", "Check everything that spotd needs."),
        "user": Entry("user", "app", "List users; shut one out of everything."),
        "secret": Entry("secret", "app", "Keep secrets for jobs; change the key that seals them."),
        "audit": Entry("audit", "audit", "Print who did what, and what was refused."),
        "alerts": Entry("alerts", "app", "Test the alert routes."),
        "metrics": Entry("metrics", "app", "Print metrics, alert rules and the board."),
        "quarantine": Entry(
            "quarantine", "quarantine", "Hold back the end of unknown machines, or not."
        ),
        "safe-mode": Entry(
            "quarantine", "safe_mode", "See or end what a daemon that crashed is held to."
        ),
        "db": Entry("db", "app", "Copy the database, or bring it to a new schema."),
        "cloud": Entry("cloud", "app", "Run a small cloud on this machine, for trying and tests."),
        "demo": Entry("demo", "demo", "Watch a real job survive three preemptions."),
    },
}

ENTRIES: dict[str, Entry] = {
    name: entry for section in SECTIONS.values() for name, entry in section.items()
}
