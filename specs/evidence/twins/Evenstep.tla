------------------------------ MODULE Evenstep ------------------------------
(***************************************************************************)
(* evenstep's rules for TLC: a twin of the core, written by hand from the  *)
(* sentences of the design's section 4. One transition is one answer of    *)
(* the world with all of the core's own moves after it.                    *)
(*                                                                         *)
(* Groups that no rule can tell apart are counted, in bags: in flight and  *)
(* running <<stamp, start weight, replacements>>; in flight and yet to     *)
(* start <<stamp, replacements>>; ready and selected <<stamp, start        *)
(* weight>>. A stamp is a target step or a bucket. Charges and filtered    *)
(* groups are bags of steps.                                               *)
(***************************************************************************)
EXTENDS Integers, Bags

CONSTANTS SAMPLER, WINDOW, FRESHEST_FIRST, N, MIN_GROUPS, MAX_INFLIGHT, MAX_BUFFERED, FLOOR, MAX_STEPS,
          MAX_REPLACEMENTS, RESERVE, DYNAMIC_SAMPLING, MAX_FILTERED, MAX_DROPPED, MAX_SKIPPED, PROMPTS, EPOCHS,
          FAILS, BACKS_OFF, CLAIMS_FAIL, CRASHES,
          NONE      \* a limit that is not there, and the stamp of what is not stamped

VARIABLE run

Pool == MAX_REPLACEMENTS > 0
Gated == SAMPLER # "WINDOWED"

Min(a, b) == IF a < b THEN a ELSE b
One(class) == SetToBag({class})
Copies(class, groups) == IF groups = 0 THEN EmptyBag ELSE [c \in {class} |-> groups]
Without(bag, classes) == [c \in DOMAIN bag \ classes |-> bag[c]]
Moved(bag, classes, To(_)) ==   \* the groups of `bag` whose class is in `classes`, as classes To(c)
    LET RECURSIVE Sum(_)
        Sum(left) == IF left = {} THEN EmptyBag
                     ELSE LET c == CHOOSE c \in left : TRUE IN Copies(To(c), bag[c]) (+) Sum(left \ {c})
    IN Sum(classes)

InFlight(r) == BagCardinality(r.running) + BagCardinality(r.waiting) + BagCardinality(r.backing_off)
Selected(r) == BagCardinality(r.chunk) + BagCardinality(r.trained)
Charged(r, step) == CopiesIn(step, r.charged)
Want(r) == N - Selected(r) - Charged(r, r.version)

-----------------------------------------------------------------------------
(* Data (A5). *)

LeastBatch == IF Pool \/ ~Gated THEN 1 ELSE N
Left(r) == PROMPTS - r.offset
DataLeft(r) == Left(r) >= LeastBatch
Batch(r) == Min(Left(r), N)

Pulled(r) ==
    LET after == [r EXCEPT !.offset = @ + Batch(r)]
    IN IF ~DataLeft(after) /\ r.epoch + 1 < EPOCHS /\ PROMPTS >= LeastBatch
       THEN [after EXCEPT !.epoch = @ + 1, !.offset = 0]
       ELSE after

-----------------------------------------------------------------------------
(* Losses. *)

RECURSIVE FirstWithPlace(_, _)
FirstWithPlace(r, step) ==
    IF (IF step = r.version THEN Selected(r) ELSE 0) + Charged(r, step) < N THEN step ELSE FirstWithPlace(r, step + 1)
StepOf(r, stamp) == IF SAMPLER = "IN_ORDER" THEN stamp ELSE FirstWithPlace(r, r.version)

Lost(r, stamp) ==                                                                           \* L3
    IF SAMPLER = "WINDOWED" THEN r ELSE [r EXCEPT !.charged = @ (+) One(StepOf(r, stamp))]

ReplacedOrLost(r, class) ==                                                                 \* L2
    IF class[3] < MAX_REPLACEMENTS /\ r.spares > 0
    THEN [r EXCEPT !.spares = @ - 1, !.waiting = @ (+) One(<<class[1], class[3] + 1>>)]
    ELSE Lost(r, class[1])

Stopped(r) == [r EXCEPT !.status = "stopped"]
Completed(r) == [r EXCEPT !.status = "completed"]

-----------------------------------------------------------------------------
(* The core's own moves: the first that applies, again and again until none does. *)

Buckets(r) == {c[1] : c \in DOMAIN r.ready \cup DOMAIN r.running \cup DOMAIN r.waiting \cup DOMAIN r.backing_off}
              \cup (IF r.queued > 0 THEN {r.stamp} ELSE {})

Eligible(r) ==                                                                              \* S2
    CASE SAMPLER = "IN_ORDER" -> {c \in DOMAIN r.ready : c[1] = r.version}
      [] SAMPLER = "READY_FIRST" -> DOMAIN r.ready
      [] SAMPLER = "WINDOWED" -> {c \in DOMAIN r.ready : c[2] >= r.version - WINDOW}
      [] SAMPLER = "WEIGHT_FIFO" -> {c \in DOMAIN r.ready : \A b \in Buckets(r) : c[1] <= b}

EligibleGroups(r) == BagCardinality([c \in Eligible(r) |-> r.ready[c]])

Before(c, d) == IF FRESHEST_FIRST = 1 THEN c[2] >= d[2] ELSE c[2] <= d[2]                   \* S3

RECURSIVE TakenFrom(_, _, _)
TakenFrom(r, classes, want) ==
    IF want = 0 \/ classes = {} THEN r
    ELSE LET class == CHOOSE c \in classes : \A d \in classes : Before(c, d)
             groups == Copies(class, Min(want, r.ready[class]))
         IN TakenFrom([r EXCEPT !.ready = @ (-) groups, !.chunk = @ (+) groups],
                      classes \ {class}, want - groups[class])

Taken(r) == [TakenFrom(r, Eligible(r), Want(r)) EXCEPT !.trainer = "training"]              \* S1, S4

TooOld(r) == IF SAMPLER = "WINDOWED" THEN {c \in DOMAIN r.ready : c[2] < r.version - WINDOW} ELSE {}

MoveWhileAssembling(r) ==
    IF MAX_STEPS # NONE /\ r.version >= MAX_STEPS THEN Completed(r)                         \* X3
    ELSE IF TooOld(r) # {} THEN [r EXCEPT !.ready = Without(@, TooOld(r))]                  \* E1
    ELSE IF N - Charged(r, r.version) < FLOOR THEN Stopped(r)                               \* L6
    ELSE IF MAX_FILTERED # NONE /\ CopiesIn(r.version, r.filtered) > MAX_FILTERED THEN Stopped(r)   \* L8
    ELSE IF Want(r) = 0 THEN [r EXCEPT !.trainer = "finishing"]                             \* L5
    ELSE IF EligibleGroups(r) >= Min(MIN_GROUPS, Want(r)) THEN Taken(r)                     \* S1
    ELSE IF ~r.exhausted THEN r                                                             \* X1
    ELSE IF Selected(r) = 0 /\ r.ready = EmptyBag THEN Completed(r)
    ELSE IF Gated THEN r
    ELSE IF Selected(r) + EligibleGroups(r) < FLOOR THEN Completed(r)
    ELSE IF EligibleGroups(r) > 0 THEN Taken(r)
    ELSE [r EXCEPT !.trainer = "finishing"]

GateIsOpen(r) ==                                                                            \* A1, A6
    ~Gated \/ (r.batches - 1 < r.version + WINDOW /\ (MAX_STEPS = NONE \/ r.batches < MAX_STEPS))

Admitted(r, groups) ==                                                                      \* A2, D3
    [r EXCEPT !.batches = @ + 1,
              !.queued = groups,
              !.stamp = IF SAMPLER = "IN_ORDER" THEN r.batches ELSE IF SAMPLER = "WEIGHT_FIFO" THEN r.version ELSE NONE]

MayDispatch(r) ==                                                                           \* D1
    r.queued > 0 /\ InFlight(r) < MAX_INFLIGHT /\ InFlight(r) + BagCardinality(r.ready) < MAX_BUFFERED

MoveAlways(r) ==
    IF Pool /\ DataLeft(r) /\ (Left(r) < N \/ r.spares < RESERVE)                           \* P1, A5
    THEN [Pulled(r) EXCEPT !.spares = @ + Batch(r)]
    ELSE IF r.queued = 0 /\ GateIsOpen(r) /\ DataLeft(r) THEN Pulled(Admitted(r, Batch(r))) \* A1
    ELSE IF r.queued = 0 /\ GateIsOpen(r) /\ InFlight(r) = 0 /\ r.spares >= N /\ ~DataLeft(r)
    THEN [Admitted(r, N) EXCEPT !.spares = @ - N]                                           \* P2
    ELSE IF r.trainer # "syncing" /\ r.waiting # EmptyBag                                   \* D2
    THEN LET Start(c) == <<c[1], r.version, c[2]>>
         IN [r EXCEPT !.waiting = EmptyBag, !.running = @ (+) Moved(r.waiting, DOMAIN r.waiting, Start)]
    ELSE IF r.trainer # "syncing" /\ MayDispatch(r)                                         \* D1
    THEN [r EXCEPT !.queued = @ - 1,
                   !.stamp = IF r.queued = 1 THEN NONE ELSE @,
                   !.running = @ (+) One(<<r.stamp, r.version, 0>>)]
    ELSE IF ~r.exhausted /\ ~DataLeft(r) /\ r.queued = 0 /\ InFlight(r) = 0 /\ r.spares < N
    THEN [r EXCEPT !.exhausted = TRUE]                                                      \* X1's premise
    ELSE r

RECURSIVE Settled(_)
Settled(r) ==
    IF r.status # "running" THEN r
    ELSE LET first == IF r.trainer = "assembling" THEN MoveWhileAssembling(r) ELSE r
             next == IF first # r THEN first ELSE MoveAlways(r)
         IN IF next = r THEN r ELSE Settled(next)

-----------------------------------------------------------------------------
(* The world's answers. *)

Init == run = Settled(
    [status |-> "running", trainer |-> "assembling", version |-> 0, epoch |-> 0, offset |-> 0, exhausted |-> FALSE,
     batches |-> 0, spares |-> 0, queued |-> 0, stamp |-> NONE, running |-> EmptyBag, waiting |-> EmptyBag,
     backing_off |-> EmptyBag, ready |-> EmptyBag, chunk |-> EmptyBag, trained |-> EmptyBag, charged |-> EmptyBag,
     filtered |-> EmptyBag, dropped_in_a_row |-> 0, skipped |-> 0])

Ends(class) == [run EXCEPT !.running = @ (-) One(class)]   \* an attempt of the class is over

Committed(class) ==
    [Ends(class) EXCEPT !.ready = @ (+) One(<<class[1], class[2]>>), !.dropped_in_a_row = 0]

Filtered(class) ==                                                                          \* L1
    LET counted == IF MAX_FILTERED = NONE THEN EmptyBag ELSE One(StepOf(run, class[1]))
    IN ReplacedOrLost([Ends(class) EXCEPT !.filtered = @ (+) counted, !.dropped_in_a_row = 0], class)

Retried(class) ==                                                                           \* L7
    LET held == One(<<class[1], class[3]>>)
    IN IF BACKS_OFF = 1 THEN [Ends(class) EXCEPT !.backing_off = @ (+) held]
       ELSE [Ends(class) EXCEPT !.waiting = @ (+) held]

Dropped(class) ==                                                                           \* L7
    LET after == [Ends(class) EXCEPT !.dropped_in_a_row = @ + 1]
    IN IF after.dropped_in_a_row > MAX_DROPPED THEN Stopped(after) ELSE ReplacedOrLost(after, class)

Skipped(class) ==                                                                           \* L7
    LET after == [Ends(class) EXCEPT !.skipped = @ + 1]
    IN IF after.skipped > MAX_SKIPPED THEN Stopped(after) ELSE ReplacedOrLost(after, class)

BackoffEnded(held) == [run EXCEPT !.backing_off = @ (-) One(held), !.waiting = @ (+) One(held)]

ClaimFailed(class) ==                                                                       \* S5
    LET after == [run EXCEPT !.chunk = @ (-) One(class), !.dropped_in_a_row = @ + 1]
    IN IF after.dropped_in_a_row > MAX_DROPPED THEN Stopped(after) ELSE Lost(after, class[1])

ChunkTrained == [run EXCEPT !.trained = @ (+) run.chunk, !.chunk = EmptyBag, !.trainer = "assembling"]

StepFinished ==                                                                             \* L5, E1
    LET version == run.version + 1
        stale == IF Gated THEN {} ELSE {c \in DOMAIN run.running : c[2] < version - WINDOW}
    IN [run EXCEPT !.version = version,
                   !.trainer = "syncing",
                   !.trained = EmptyBag,
                   !.charged = Without(@, {run.version}),
                   !.filtered = Without(@, {run.version}),
                   !.running = Without(@, stale)]

Resumed ==                                                                                  \* C2
    LET Again(c) == <<c[1], run.version, c[3]>>
        Start(c) == <<c[1], run.version, c[2]>>
    IN [run EXCEPT !.running = Moved(@, DOMAIN @, Again) (+) Moved(run.waiting, DOMAIN run.waiting, Start)
                               (+) Moved(run.backing_off, DOMAIN run.backing_off, Start),
                   !.waiting = EmptyBag,
                   !.backing_off = EmptyBag,
                   !.ready = @ (+) run.chunk (+) run.trained,
                   !.chunk = EmptyBag,
                   !.trained = EmptyBag,
                   !.exhausted = FALSE,      \* found out again
                   !.trainer = "assembling"]

Next ==
    /\ run.status = "running"
    /\ \/ \E c \in DOMAIN run.running : run' = Settled(Committed(c))
       \/ DYNAMIC_SAMPLING = 1 /\ \E c \in DOMAIN run.running : run' = Settled(Filtered(c))
       \/ FAILS = 1 /\ \E c \in DOMAIN run.running : run' = Settled(Retried(c))
       \/ FAILS = 1 /\ \E c \in DOMAIN run.running : run' = Settled(Dropped(c))
       \/ FAILS = 1 /\ MAX_SKIPPED > 0 /\ \E c \in DOMAIN run.running : run' = Settled(Skipped(c))
       \/ \E h \in DOMAIN run.backing_off : run' = Settled(BackoffEnded(h))
       \/ run.trainer = "training" /\ run' = Settled(ChunkTrained)
       \/ CLAIMS_FAIL = 1 /\ run.trainer = "training" /\ \E c \in DOMAIN run.chunk : run' = Settled(ClaimFailed(c))
       \/ run.trainer = "finishing" /\ run' = Settled(StepFinished)
       \/ run.trainer = "syncing" /\ run' = Settled([run EXCEPT !.trainer = "assembling"])
       \/ CRASHES = 1 /\ run' = Settled(Resumed)

-----------------------------------------------------------------------------
(* What holds of every state. *)

StepsComeOutEven ==                                                                         \* L4, L5
    Selected(run) + Charged(run, run.version) <= N /\ \A step \in DOMAIN run.charged : run.charged[step] <= N
NothingIsStuck == run.status = "running" /\ run.trainer = "assembling" => InFlight(run) > 0
=============================================================================
