/* evenstep's rules for SPIN: a twin of the core, written by hand from the sentences of the design's section 4.
 *
 * Nothing here is generated from the rule tables: that both count the same states and transitions is evidence that
 * the tables say what the sentences say. One transition is one answer of the world with all of the core's own moves
 * after it, in one atomic step. Groups that no rule can tell apart are counted: per stamp (target step or bucket),
 * start weight and replacements.
 *
 * parameters.h, written for each configuration, defines:
 *   SAMPLER (IN_ORDER, READY_FIRST, WEIGHT_FIFO, WINDOWED) WINDOW FRESHEST_FIRST
 *   N MIN_GROUPS MAX_INFLIGHT MAX_BUFFERED FLOOR MAX_STEPS (-1: none)
 *   MAX_REPLACEMENTS (0: no pool) RESERVE
 *   DYNAMIC_SAMPLING MAX_FILTERED (-1: none) MAX_DROPPED MAX_SKIPPED
 *   PROMPTS (of an epoch) EPOCHS
 *   FAILS BACKS_OFF CLAIMS_FAIL CRASHES (what the world may do)
 *   STEPS (columns of step numbers and versions) STAMPS (columns of stamps; 1 where the sampler stamps nothing)
 *   EVERY_RUNNING(F) EVERY_HELD(F) EVERY_READY(F): F(0) F(1) ... for the classes of each kind
 */
#define IN_ORDER 0
#define READY_FIRST 1
#define WEIGHT_FIFO 2
#define WINDOWED 3

#include "parameters.h"

#define POOL (MAX_REPLACEMENTS > 0)
#define GATED (SAMPLER != WINDOWED)
#define TRIES (MAX_REPLACEMENTS + 1)

/* A class as an index: ready and selected groups have a stamp and a start weight, those in flight replacements too;
 * an attempt that is yet to start has no start weight. */
#define READY(stamp, weight) ((stamp) * STEPS + (weight))
#define HELD(stamp, tries) ((stamp) * TRIES + (tries))
#define RUNNING(stamp, weight, tries) (((stamp) * STEPS + (weight)) * TRIES + (tries))

/* status of the run */
#define BEFORE 0
#define GOES_ON 1
#define COMPLETED 2
#define STOPPED 3
/* trainer */
#define ASSEMBLING 0
#define TRAINING 1
#define FINISHING 2
#define SYNCING 3
/* answers of the world */
#define BEGIN 0
#define COMMIT 1
#define FILTER 2
#define RETRY 3
#define DROP 4
#define SKIP 5
#define END_BACKOFF 6
#define CLAIM_FAILED 7
#define CHUNK_TRAINED 8
#define STEP_FINISHED 9
#define WEIGHTS_SYNCED 10
#define CRASH 11

byte status = BEFORE;
byte trainer, version;
byte epoch, offset;                /* of the data: prompts of this epoch that are pulled */
bool exhausted;
byte batches;                      /* the dispatch index + 1 */
byte spares;
byte queued, queue_stamp;          /* the batch that is admitted and not yet wholly dispatched */
byte in_flight, ready_groups;      /* sums of the counts below */
byte running[STAMPS * STEPS * TRIES];
byte waiting[STAMPS * TRIES];      /* to start as soon as no weight sync is under way */
byte backing_off[STAMPS * TRIES];
byte ready[STAMPS * STEPS];
byte chunk[STAMPS * STEPS];        /* selected, in training */
byte trained[STAMPS * STEPS];      /* selected, in earlier chunks of the step being assembled */
byte selected;
byte charged[STEPS];
byte filtered[STEPS];              /* per step, kept where there is a limit */
byte dropped_in_a_row, skipped;

byte answer, class;                /* what the world says; 0 between transitions */

/* Scratch of one transition, no part of the state. */
hidden byte nth, step, home, stamp, weight, tries, first, groups, eligible, want;
hidden byte found;

/* Prompts that the epoch has left, and whether a batch can be taken of them (A5). */
#define LEFT (PROMPTS - offset)
#define LEAST_BATCH ((POOL || !GATED) -> 1 : N)
#define DATA_LEFT (LEFT >= LEAST_BATCH)

inline pull() {
    offset = offset + groups;
    if :: !DATA_LEFT && epoch + 1 < EPOCHS && PROMPTS >= LEAST_BATCH -> epoch++; offset = 0 :: else fi
}

/* L3: the earliest step with selected + charged < N, in `step`. */
inline find_assembling_step() {
    step = version;
    do
    :: charged[step] + (step == version -> selected : 0) >= N -> step++
    :: else -> break
    od
}

/* L3, L4: the group of stamp `home` is lost. */
inline lose() {
    if
    :: SAMPLER == WINDOWED
    :: else ->
        if :: SAMPLER == IN_ORDER -> step = home :: else -> find_assembling_step() fi;
        charged[step]++;
        assert(step >= version && charged[step] + (step == version -> selected : 0) <= N)
    fi
}

/* L2: a spare takes over the slot of the group of stamp `home`, which has had `tries` replacements, or it is lost. */
inline replace_or_lose() {
    if
    :: tries < MAX_REPLACEMENTS && spares > 0 -> spares--; in_flight++; waiting[HELD(home, tries + 1)]++
    :: else -> lose()
    fi
}

/* The group of class `class` stops running; what it was in home, weight and tries. */
inline leave_running() {
    running[class]--;
    home = class / (STEPS * TRIES);
    weight = (class / TRIES) % STEPS;
    tries = class % TRIES
}

inline filter() {
    leave_running();
    in_flight--;
    dropped_in_a_row = 0;
    if
    :: MAX_FILTERED < 0
    :: else ->
        if :: SAMPLER == IN_ORDER -> step = home :: else -> find_assembling_step() fi;
        filtered[step]++
    fi;
    replace_or_lose()
}

/* L7: one more than the budget stops the run. */
inline drop(spent, budget) {
    leave_running();
    in_flight--;
    spent++;
    if :: spent > budget -> status = STOPPED :: else -> replace_or_lose() fi
}

/* S5 */
inline claim_failed() {
    chunk[class]--;
    selected--;
    home = class / STEPS;
    dropped_in_a_row++;
    if :: dropped_in_a_row > MAX_DROPPED -> status = STOPPED :: else -> lose() fi
}

inline chunk_trained() {
    for (nth : 0 .. STAMPS * STEPS - 1) {
        trained[nth] = trained[nth] + chunk[nth];
        chunk[nth] = 0
    };
    trainer = ASSEMBLING
}

/* L5, and E1: running attempts that fell out of the window are aborted. */
inline step_finished() {
    for (nth : 0 .. STAMPS * STEPS - 1) {
        trained[nth] = 0
    };
    charged[version] = 0;
    filtered[version] = 0;
    selected = 0;
    version++;
    trainer = SYNCING;
    if
    :: SAMPLER == WINDOWED ->
        for (weight : 0 .. STEPS - 1) {
            if
            :: weight + WINDOW < version ->
                in_flight = in_flight - running[RUNNING(0, weight, 0)];
                running[RUNNING(0, weight, 0)] = 0
            :: else
            fi
        }
    :: else
    fi
}

/* C2. What is exhausted is found out again. */
inline crash() {
    for (stamp : 0 .. STAMPS - 1) {
        for (tries : 0 .. TRIES - 1) {
            groups = waiting[HELD(stamp, tries)] + backing_off[HELD(stamp, tries)];
            waiting[HELD(stamp, tries)] = 0;
            backing_off[HELD(stamp, tries)] = 0;
            for (weight : 0 .. STEPS - 1) {
                groups = groups + running[RUNNING(stamp, weight, tries)];
                running[RUNNING(stamp, weight, tries)] = 0
            };
            running[RUNNING(stamp, version, tries)] = groups
        }
    };
    for (nth : 0 .. STAMPS * STEPS - 1) {
        ready[nth] = ready[nth] + chunk[nth] + trained[nth];
        chunk[nth] = 0;
        trained[nth] = 0
    };
    ready_groups = ready_groups + selected;
    selected = 0;
    exhausted = false;
    trainer = ASSEMBLING
}

#include "own_moves.pml"

inline apply() {
    if
    :: answer == BEGIN -> status = GOES_ON
    :: answer == COMMIT ->
        leave_running();
        in_flight--;
        ready[READY(home, weight)]++;
        ready_groups++;
        dropped_in_a_row = 0
    :: answer == FILTER -> filter()
    :: answer == RETRY ->
        leave_running();
        if
        :: BACKS_OFF -> backing_off[HELD(home, tries)]++
        :: else -> waiting[HELD(home, tries)]++
        fi
    :: answer == DROP -> drop(dropped_in_a_row, MAX_DROPPED)
    :: answer == SKIP -> drop(skipped, MAX_SKIPPED)
    :: answer == END_BACKOFF -> backing_off[class]--; waiting[class]++
    :: answer == CLAIM_FAILED -> claim_failed()
    :: answer == CHUNK_TRAINED -> chunk_trained()
    :: answer == STEP_FINISHED -> step_finished()
    :: answer == WEIGHTS_SYNCED -> trainer = ASSEMBLING
    :: answer == CRASH -> crash()
    fi;
    answer = 0;
    class = 0
}

/* What the world may say now, one option for each answer and class. */
#define SAY(what, of) d_step { answer = what; class = of }
#define SAY_RUNNING(c) \
    :: running[c] > 0 -> SAY(COMMIT, c) \
    :: DYNAMIC_SAMPLING && running[c] > 0 -> SAY(FILTER, c) \
    :: FAILS && running[c] > 0 -> SAY(RETRY, c) \
    :: FAILS && running[c] > 0 -> SAY(DROP, c) \
    :: FAILS && MAX_SKIPPED > 0 && running[c] > 0 -> SAY(SKIP, c)
#define SAY_HELD(c) :: backing_off[c] > 0 -> SAY(END_BACKOFF, c)
#define SAY_READY(c) :: CLAIMS_FAIL && trainer == TRAINING && chunk[c] > 0 -> SAY(CLAIM_FAILED, c)

/* The run is not over, and nothing can ever happen again. */
#define STUCK (status == GOES_ON && trainer == ASSEMBLING && in_flight == 0)

active proctype core() {
end:
    do
    :: atomic {
        status <= GOES_ON ->
        if
        :: status == BEFORE -> SAY(BEGIN, 0)
        EVERY_RUNNING(SAY_RUNNING)
        EVERY_HELD(SAY_HELD)
        EVERY_READY(SAY_READY)
        :: trainer == TRAINING -> SAY(CHUNK_TRAINED, 0)
        :: trainer == FINISHING -> SAY(STEP_FINISHED, 0)
        :: trainer == SYNCING -> SAY(WEIGHTS_SYNCED, 0)
        :: CRASHES && status == GOES_ON -> SAY(CRASH, 0)
        fi;
        d_step {
            apply();
            settle();
            assert(!STUCK)
        }
    }
    od
}
