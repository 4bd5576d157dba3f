"""Table of `spotctl` commands: where each is defined, and its one line of help.

The help lines stand here as well as in the modules, so that `spotctl --help` imports no command.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One command: the function `attribute` of `spotd.cli.<module>`, or its sub-group `app`."""

    module: str
    attribute: str
    help: str


SECTIONS: dict[str, dict[str, Entry]] = {
    "Jobs": {
        "run": Entry("run", "run", "Submit a job file and follow it until it trains."),
        "ps": Entry("jobs", "ps", "List jobs."),
        "show": Entry("jobs", "show", "Show one job with its machines."),
        "logs": Entry("logs", "logs", "Print a job's output from all its machines."),
        "results": Entry("results", "app", "Store the results of evaluating a job's model."),
        "drill": Entry("drill", "app", "Inject a fault into a job and check that it recovers."),
        "ckpt": Entry("checkpoints", "app", "List, verify, download and pin a job's checkpoints."),
        "outputs": Entry("outputs", "app", "List, download or delete the files that a job left."),
        "events": Entry("events", "events", "Print the events of one job or of all."),
        "why": Entry("explain", "why", "Explain a job's state and its next step."),
        "advisor": Entry("advisor", "app", "Advise on spot and commitments; export traces."),
        "plan": Entry("explain", "plan", "Rank the offers for a job file. Starts nothing."),
        "rightsize": Entry(
            "rightsize", "rightsize", "Estimate a training run's memory, time and cost."
        ),
        "dashboard": Entry(
            "dashboard", "dashboard", "Show jobs, machines and costs in a browser. Read-only."
        ),
        "wait": Entry("wait", "wait", "Wait until a job ends, runs or is paused."),
        "pause": Entry("job_control", "pause", "Save and release the machines until resumed."),
        "resume": Entry("job_control", "resume", "Run a paused job from its last checkpoint."),
        "cancel": Entry("job_control", "cancel", "Save, release the machines and end the job."),
    },
    "Machines and money": {
        "nodes": Entry("jobs", "nodes", "List machines that cost money now, or all of one job."),
        "orphans": Entry("orphans", "app", "List and end resources that belong to no job."),
        "image": Entry("image", "app", "Bake, list and remove images that have setup done."),
        "ssh": Entry("ssh", "ssh", "Log in to a job's machine, or run a command there."),
        "offers": Entry("offers", "offers", "List current offers, cheapest first."),
        "price": Entry("offers", "app", "Show price history, and prices that guides claim."),
        "stats": Entry("stats", "stats", "Show interruption, refusal and startup statistics."),
        "providers": Entry(
            "providers", "providers", "List clouds with notice times and egress prices."
        ),
        "shadow": Entry("shadow", "shadow", "Estimate spotd's savings on another scheduler's log."),
        "budget": Entry("budgets", "app", "Show budgets; approve that a job exceeds one."),
        "cost": Entry("cost", "app", "Show what jobs cost, and would have cost on demand."),
    },
    "The daemon": {
        "init": Entry("init", "init", "Print or create what spotd needs in a cloud account."),
        "reload": Entry("reload", "reload", "Have the daemon read its configuration again."),
        "doctor": Entry("doctor", "doctor", "Check everything that spotd needs."),
        "user": Entry("user", "app", "List, disable and enable users."),
        "secret": Entry("secret", "app", "Store secrets for jobs; rotate the master key."),
        "audit": Entry("audit", "audit", "Print who did what, and what was refused."),
        "alerts": Entry("alerts", "app", "Test the alert routes."),
        "metrics": Entry("metrics", "app", "Print metrics, alert rules and the Grafana dashboard."),
        "quarantine": Entry(
            "quarantine", "quarantine", "Show or release the quarantine of unknown machines."
        ),
        "safe-mode": Entry(
            "quarantine", "safe_mode", "Show or leave safe mode after repeated crashes."
        ),
        "db": Entry("db", "app", "Back up the database or upgrade its schema."),
        "cloud": Entry("cloud", "app", "Run a simulated cloud on this machine, for tests."),
        "demo": Entry("demo", "demo", "Watch a real job survive three preemptions."),
        "help": Entry("help", "help_", "Show all commands by group, or the help of one."),
    },
}

ENTRIES: dict[str, Entry] = {
    name: entry for section in SECTIONS.values() for name, entry in section.items()
}

# The first page of help: each with an example.
DAILY = {
    "run": "spotctl run train.yaml",
    "ps": "spotctl ps",
    "show": "spotctl show gpt",
    "logs": "spotctl logs gpt -f",
    "why": "spotctl why gpt",
    "events": "spotctl events gpt",
    "ssh": "spotctl ssh gpt",
    "ckpt": "spotctl ckpt ls gpt",
    "cost": "spotctl cost gpt",
    "cancel": "spotctl cancel gpt",
}

# Old names, accepted for one version.
MOVED = {
    "advise": ("advisor", "job"),
    "trace": ("advisor", "trace"),
    "commitments": ("advisor", "commitments"),
}
