/* The core's own moves; evenstep.pml has the state that they move. */

/* S2: eligible are ready groups of stamp `stamp` whose start weight is at least `first`; how many, in `eligible`. */
inline find_eligible() {
    stamp = 0;
    first = 0;
    if
    :: SAMPLER == IN_ORDER -> stamp = version
    :: SAMPLER == WEIGHT_FIFO ->
        /* The oldest bucket that has a group queued, in flight or ready. */
        do
        :: stamp == STAMPS - 1 -> break
        :: else ->
            found = (queued > 0 && queue_stamp == stamp);
            for (weight : 0 .. STEPS - 1) {
                found = found || ready[READY(stamp, weight)] > 0;
                for (tries : 0 .. TRIES - 1) {
                    found = found || running[RUNNING(stamp, weight, tries)] + waiting[HELD(stamp, tries)] + backing_off[HELD(stamp, tries)] > 0
                }
            };
            if
            :: found -> break
            :: else -> stamp++
            fi
        od
    :: SAMPLER == WINDOWED && version > WINDOW -> first = version - WINDOW
    :: else
    fi;
    eligible = 0;
    weight = first;
    do
    :: weight < STEPS && stamp < STAMPS -> eligible = eligible + ready[READY(stamp, weight)]; weight++
    :: else -> break
    od
}

/* S3, S4: up to `want` of the eligible groups go into the step, in order of dispatch or freshest first. */
inline take() {
    weight = (FRESHEST_FIRST -> STEPS - 1 : first);
    do
    :: want == 0 || weight < first || weight >= STEPS -> break
    :: else ->
        groups = (ready[READY(stamp, weight)] < want -> ready[READY(stamp, weight)] : want);
        ready[READY(stamp, weight)] = ready[READY(stamp, weight)] - groups;
        ready_groups = ready_groups - groups;
        chunk[READY(stamp, weight)] = groups;
        selected = selected + groups;
        want = want - groups;
        if
        :: FRESHEST_FIRST && weight == first -> break
        :: FRESHEST_FIRST && weight > first -> weight--
        :: else -> weight++
        fi
    od;
    trainer = TRAINING;
    assert(selected + charged[version] <= N)
}

/* E1: ready groups below the window; how many, in `groups`. */
inline evict() {
    groups = 0;
    weight = 0;
    do
    :: SAMPLER == WINDOWED && weight + WINDOW < version ->
        groups = groups + ready[READY(0, weight)];
        ready[READY(0, weight)] = 0;
        weight++
    :: else -> break
    od;
    ready_groups = ready_groups - groups
}

inline start_waiting() {
    for (stamp : 0 .. STAMPS - 1) {
        for (tries : 0 .. TRIES - 1) {
            running[RUNNING(stamp, version, tries)] = running[RUNNING(stamp, version, tries)] + waiting[HELD(stamp, tries)];
            waiting[HELD(stamp, tries)] = 0
        }
    }
}

/* Attempts wait to start: found. */
inline look_for_waiting() {
    found = false;
    for (nth : 0 .. STAMPS * TRIES - 1) {
        found = found || waiting[nth] > 0
    }
}

/* A1, A6: the gate. */
#define OPEN_GATE (!GATED || (batches <= version + WINDOW && (MAX_STEPS < 0 || batches < MAX_STEPS)))

/* A2, D3: the stamp of a batch that is admitted now. */
inline admit() {
    queued = groups;
    queue_stamp = (SAMPLER == IN_ORDER -> batches : (SAMPLER == WEIGHT_FIFO -> version : 0));
    batches++
}

/* The core's own moves: the first that applies, again and again until none does. */
inline settle() {
    skip;
again:
    if :: status != GOES_ON -> goto settled :: else fi;
    if :: trainer != ASSEMBLING -> goto whatever_the_trainer_does :: else fi;
    /* X3 */
    if :: MAX_STEPS >= 0 && version >= MAX_STEPS -> status = COMPLETED; goto settled :: else fi;
    /* E1; of the moves above none looks at ready groups, so that they need not be tried again. */
    evict();
    /* L6 */
    if :: N - charged[version] < FLOOR -> status = STOPPED; goto settled :: else fi;
    /* L8 */
    if :: MAX_FILTERED >= 0 && filtered[version] > MAX_FILTERED -> status = STOPPED; goto settled :: else fi;
    /* L5 */
    want = N - selected - charged[version];
    if :: want == 0 -> trainer = FINISHING; goto again :: else fi;
    /* S1 */
    find_eligible();
    if :: eligible >= (MIN_GROUPS < want -> MIN_GROUPS : want) -> take(); goto again :: else fi;
    /* X1 */
    if
    :: exhausted && selected == 0 && ready_groups == 0 -> status = COMPLETED; goto settled
    :: exhausted && !GATED ->
        if
        :: selected + eligible < FLOOR -> status = COMPLETED; goto settled
        :: selected + eligible >= FLOOR && eligible > 0 -> take(); goto again
        :: else -> trainer = FINISHING; goto again
        fi
    :: else
    fi;

whatever_the_trainer_does:
    /* P1, A5 */
    if
    :: POOL && DATA_LEFT && (LEFT < N || spares < RESERVE) ->
        groups = (LEFT < N -> LEFT : N);
        pull();
        spares = spares + groups;
        goto again
    :: else
    fi;
    /* A1, P2 */
    if
    :: queued == 0 && OPEN_GATE && DATA_LEFT ->
        groups = (LEFT < N -> LEFT : N);
        admit();
        pull();
        goto again
    :: queued == 0 && OPEN_GATE && !DATA_LEFT && in_flight == 0 && spares >= N ->
        groups = N;
        admit();
        spares = spares - N;
        goto again
    :: else
    fi;
    /* D2, and D1 */
    if
    :: trainer == SYNCING
    :: else ->
        look_for_waiting();
        if :: found -> start_waiting(); goto again :: else fi;
        if
        :: queued > 0 && in_flight + ready_groups < MAX_BUFFERED && in_flight < MAX_INFLIGHT ->
            queued--;
            in_flight++;
            running[RUNNING(queue_stamp, version, 0)]++;
            if :: queued == 0 -> queue_stamp = 0 :: else fi;
            goto again
        :: else
        fi
    fi;
    /* X1's premise */
    if
    :: !exhausted && !DATA_LEFT && queued == 0 && in_flight == 0 && spares < N -> exhausted = true; goto again
    :: else
    fi;
settled:
    skip
}
