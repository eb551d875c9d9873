"""The driver: it has a run made on Ray by another process, watches all processes of the run, and restarts it.

Start with `run_until_it_ends` in `restarts`. The process that a user starts never calls Ray: a frozen raylet or GCS
would block it, and Ray ends processes whose GCS is gone. So an interrupt is always heard, and whatever fails can be
killed.

    roles       which process of a run is which
    running     processes that do not run, though they have not ended
    orphans     processes whose parents died, and files that nobody needs
    keeper      the process between the two, which outlives both and ends what they leave
    ray_client  the process that talks to Ray: one attempt at the run
    attempt     that process from its start to its end, with all processes below it
    restarts    attempt after attempt, each from the last checkpoint
"""
