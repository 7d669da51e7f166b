/* Ownership, fencing, publication and reset of one computation, for spin. docs/concepts/simulation.md says how it is run, and what it leaves out.

   Two shards over one store, two workers that claim the same key ranges, one reader. Steps have the names that they have in the code:

     shard    beat, left out, join                   cluster/cluster.py, cluster/membership.py
              take, load, hold, let go               engine/holding.py, engine/holdings.py, journal/contract.py
              stage, append, publish, confirm        engine/round.py, engine/confirmation.py
     worker   claim, report, lower                   core/computation.py
     reader   watch                                  engine/hub.py
     all      reset                                  core/topology.py, core/recovery.py

   A step is atomic, and between two steps of a process the others may make any number of theirs: so a shard or worker that is frozen is one that
   makes no step for a while. No step looks at a clock: a shard is left out of the view whether it is dead, frozen or only slow.

   Behind "BUG" stands what is wrong when the switch in front of it is set (-DNO_FENCE): the search must find it. REACHED(X) stands where something
   worth a look has happened: with -DGOAL=X the search must come there. -DBY_HARM leaves out the assertions that only repeat a rule, so that what is
   found is harm: a watermark that leads or goes back, or an answer that was not true. */

#ifndef RANGES
#define RANGES 1               /* key ranges, 1 or 2 */
#endif
#ifndef LAST
#define LAST 2                 /* event times: 0 is unknown, LAST is the last one */
#endif
#ifndef VIEWS
#define VIEWS 2                /* versions of the view */
#endif
#ifndef EPOCHS
#define EPOCHS 2               /* times that the log is taken */
#endif
#ifndef CLAIMS
#define CLAIMS 2               /* claims that are granted */
#endif
#ifndef NUMBERS
#define NUMBERS 2              /* reports of a claim */
#endif
#ifndef LIVES
#define LIVES 2                /* incarnations */
#endif

#ifndef GOAL
#define GOAL 0
#endif
#define OUTVOTED 1
#define FENCED 2
#define CRASHED_UNANSWERED 3
#define TAKEN_BACK 4
#define TAKEN_OVER_AND_PUBLISHED 5
#define ZOMBIE_WORKER_REFUSED 6
#define OLDER_REPORT_REFUSED 7
#define OLD_LIFE_REFUSED 8
#define ZOMBIE_SHARD_NOT_CONFIRMED 9
#define OLD_LIFE_APPENDED 10
#define RESET_SEEN 11
#define NEW_LIFE_DONE 12
#define LOWERED_AND_DONE 13
#define REACHED(x) assert(GOAL != x)

/* -- the store ---------------------------------------------------------------------------------------------------------- */

/* A computation, as its log says it or as a shard has it in memory. */
typedef Computation {
    byte incarnation;
    byte low;                  /* L */
    byte last_sequencer;
    byte value[RANGES];        /* what was reported of each range */
    byte sequencer[RANGES];    /* of the claim that owns it; 0: nobody */
    byte number[RANGES]        /* of that claim's newest report */
}

Computation log;
byte log_epoch;                /* Ownership.epoch: the log takes records of the highest only */
byte log_view;                 /* Ownership.view */
byte owners;                   /* for TAKEN_BACK, a bit for each of them: 010 when shard 1 has owned it once, between two times of shard 0 */
byte graph = 1;                /* the incarnation, as the graph has it */

byte view = 1;                 /* version of the view */
byte members = 3;              /* a bit for each shard */
#define SHARD_OF(members) ((members & 1) -> 0 : 1)   /* shard 0 has the higher weight */

/* -- shards ------------------------------------------------------------------------------------------------------------- */

mtype = { ABSENT, TAKING, SERVING, STAGED, APPENDED }   /* the last two: in the middle of a round */
mtype = { NOTHING, CLAIM, REPORT }

typedef Request { mtype kind; byte worker; byte range; byte sequencer; byte number; byte value }

typedef Shard {
    mtype state;
    byte view;                 /* the version that it knows */
    bit mine;                  /* whether that one names it */
    byte epoch;
    Computation memory;        /* the staged state */
    byte incarnation;          /* the published one */
    byte low;                  /* the published one */
    bit passed;                /* see FENCE_APART */
    Request round              /* what the round under way will answer */
}

Shard shard[2];
/* What is on its way, to whichever shard takes it: a worker may try all of them. One request of each worker, and one that the network has delayed. */
Request sent[3];
#define LATE 2

/* -- workers, and the truth --------------------------------------------------------------------------------------------- */

typedef Claim {
    byte sequencer;            /* 0: none */
    byte incarnation;
    byte number;               /* of the report that was sent last */
    byte lowering              /* number of the first report that lowers the range; 0: none waits for its acknowledgement */
}

Claim claim[2 * RANGES];
#define CLAIM_OF(w, r) claim[(w) * RANGES + (r)]

/* The durable state of the workers, which is no part of lowwater: the oldest unfinished work of each range, and the highest sequencer that has
   read it, below which no write is taken (MillWheel 6.2). Each incarnation begins with all work. */
byte oldest[LIVES * RANGES];
byte guard[LIVES * RANGES];
#define TRUTH(life, r) oldest[((life) - 1) * RANGES + (r)]
#define GUARD(life, r) guard[((life) - 1) * RANGES + (r)]

bit delayed;                   /* one message is delayed in a run */
bit lowered;                   /* one lowering in a run */
byte owed;                     /* the work that it is about: its sender keeps it until the lowering is acknowledged */

/* What was acknowledged, by range, in the newest incarnation that the log has. */
byte told_sequencer[RANGES];
byte told_number[RANGES];

/* -- the reader --------------------------------------------------------------------------------------------------------- */

/* It sees what its shard publishes at that moment, and all of it: a slower reader sees a part of that, in the same order. */
byte watched;                  /* the shard, plus 1; 0: none */
byte seen_incarnation;
byte seen_low;

hidden byte i;                 /* used within one step */
hidden byte least;
hidden byte ok;

/* -- what must hold ----------------------------------------------------------------------------------------------------- */

inline check_append(s) {
#ifndef BY_HARM
    assert(shard[s].epoch == log_epoch);                                 /* in an epoch the log takes its owner's appends only */
#endif
    assert(shard[s].memory.incarnation >= log.incarnation);
    if
    :: shard[s].memory.incarnation > log.incarnation ->
        for (i : 0 .. RANGES - 1) {
            told_sequencer[i] = 0;
            told_number[i] = 0
        }
        ok = (shard[s].memory.low > 0)
    :: else ->
        assert(shard[s].memory.low >= log.low);                          /* L does not go back */
        ok = (shard[s].memory.low > log.low)
    fi;
    for (i : 0 .. RANGES - 1) {
        assert(!ok || shard[s].memory.low <= TRUTH(shard[s].memory.incarnation, i))   /* L does not lead */
    }
}

/* Each claim and report that was acknowledged is in the log, or a newer claim is. */
inline check_kept() {
    for (i : 0 .. RANGES - 1) {
        assert(log.sequencer[i] > told_sequencer[i]
               || (log.sequencer[i] == told_sequencer[i] && log.number[i] >= told_number[i]))
    }
}

/* What is shown is durable. An incarnation begins with 0, which the graph says. */
inline check_published(s) {
#ifndef BY_HARM
    assert(shard[s].low == 0 || log.incarnation > shard[s].incarnation
           || (log.incarnation == shard[s].incarnation && log.low >= shard[s].low));
#endif
    skip
}

inline see(s) {
    assert(shard[s].incarnation > seen_incarnation
           || (shard[s].incarnation == seen_incarnation && shard[s].low >= seen_low));   /* no reader sees L go back */
    if
    :: seen_low > 0 && shard[s].incarnation > seen_incarnation -> REACHED(RESET_SEEN)
    :: else
    fi;
    seen_incarnation = shard[s].incarnation;
    seen_low = shard[s].low;
    if
    :: seen_low == LAST && seen_incarnation == LIVES -> REACHED(NEW_LIFE_DONE)
    :: else
    fi;
    if
    :: seen_low == LAST && lowered -> REACHED(LOWERED_AND_DONE)
    :: else
    fi
}

/* -- steps of a shard --------------------------------------------------------------------------------------------------- */

inline look(s) {
    shard[s].view = view;
    shard[s].mine = (SHARD_OF(members) == s)
}

/* recovery.restarted: nothing is known, each sequencer is stale, and none is ever granted twice. */
inline restart(s) {
    shard[s].memory.incarnation = graph;
    shard[s].memory.low = 0;
#ifdef RESET_REUSES_SEQUENCERS /* BUG: what the old life reports counts for a claim of the new one */
    shard[s].memory.last_sequencer = 0;
#endif
    for (i : 0 .. RANGES - 1) {
#ifndef RESET_KEEPS_VALUES     /* BUG: ranges begin where they stood in the old life */
        shard[s].memory.value[i] = 0;
#endif
        shard[s].memory.sequencer[i] = 0;
        shard[s].memory.number[i] = 0
    }
}

inline own(s) {
    log_epoch++;
    log_view = shard[s].view;
    shard[s].epoch = log_epoch;
#if GOAL == TAKEN_BACK
    owners = owners * 2 + s
#endif
}

inline load(s) {
    shard[s].memory.incarnation = log.incarnation;
    shard[s].memory.low = log.low;
    shard[s].memory.last_sequencer = log.last_sequencer;
    for (i : 0 .. RANGES - 1) {
        shard[s].memory.value[i] = log.value[i];
        shard[s].memory.sequencer[i] = log.sequencer[i];
        shard[s].memory.number[i] = log.number[i]
    }
    if
    :: graph > log.incarnation -> restart(s)
    :: else
    fi
}

inline publish(s) {
    shard[s].incarnation = shard[s].memory.incarnation;
    shard[s].low = shard[s].memory.low;
    check_published(s);
    if
    :: watched == s + 1 -> see(s)
    :: else
    fi
}

inline move(to, from) {
    to.kind = from.kind;
    to.worker = from.worker;
    to.range = from.range;
    to.sequencer = from.sequencer;
    to.number = from.number;
    to.value = from.value
}

inline forget(request) {
    request.kind = NOTHING;
    request.worker = 0;
    request.range = 0;
    request.sequencer = 0;
    request.number = 0;
    request.value = 0
}

/* It is another shard's. A process that dies forgets the same. */
inline let_go(s) {
    shard[s].state = ABSENT;
    shard[s].epoch = 0;
    shard[s].memory.incarnation = 0;
    shard[s].memory.low = 0;
    shard[s].memory.last_sequencer = 0;
    for (i : 0 .. RANGES - 1) {
        shard[s].memory.value[i] = 0;
        shard[s].memory.sequencer[i] = 0;
        shard[s].memory.number[i] = 0
    }
    shard[s].incarnation = 0;
    shard[s].low = 0;
    shard[s].passed = 0;
    forget(shard[s].round);
    if
    :: watched == s + 1 -> watched = 0
    :: else
    fi
}

/* Computation.take_record: the least of the ranges, and no less than before. */
inline take_record(s) {
    least = LAST;
    for (i : 0 .. RANGES - 1) {
        if
        :: shard[s].memory.value[i] < least -> least = shard[s].memory.value[i]
        :: else
        fi
    }
#ifndef NO_RATCHET             /* BUG: L follows a range that is lowered */
    if
    :: least < shard[s].memory.low -> least = shard[s].memory.low
    :: else
    fi;
#endif
    shard[s].memory.low = least
}

#define ASKED shard[s].round
#define ASKER CLAIM_OF(ASKED.worker, ASKED.range)

/* What a durable round tells whoever asked for it. */
inline answer(s) {
    if
    :: ASKED.kind == CLAIM && ASKER.sequencer < ASKED.sequencer ->
        ASKER.sequencer = ASKED.sequencer;
        ASKER.incarnation = shard[s].memory.incarnation;
        ASKER.number = 0;
        ASKER.lowering = 0
    :: ASKED.kind == REPORT && ASKER.sequencer == ASKED.sequencer && ASKER.lowering && ASKER.lowering <= ASKED.number ->
        ASKER.lowering = 0;
        if                     /* now it takes the work from its sender, unless a newer owner has read the durable state */
        :: GUARD(ASKER.incarnation, ASKED.range) == ASKED.sequencer -> TRUTH(ASKER.incarnation, ASKED.range) = owed
        :: else
        fi
    :: else
    fi;
    if
    :: shard[s].memory.incarnation >= log.incarnation &&
          (ASKED.sequencer > told_sequencer[ASKED.range]
           || (ASKED.sequencer == told_sequencer[ASKED.range] && ASKED.number > told_number[ASKED.range])) ->
        told_sequencer[ASKED.range] = ASKED.sequencer;
        told_number[ASKED.range] = ASKED.number
    :: else
    fi;
    check_kept()
}

inline grant(s, w) {
    shard[s].memory.last_sequencer++;
    shard[s].memory.sequencer[sent[w].range] = shard[s].memory.last_sequencer;
    shard[s].memory.number[sent[w].range] = 0;
    sent[w].sequencer = shard[s].memory.last_sequencer
}

/* Computation.report: sequencers are compared for equality, and each report of a claim counts once, in order. */
inline accepts(s, w) {
    ok = (sent[w].sequencer == shard[s].memory.sequencer[sent[w].range]);
    if
    :: !ok && shard[s].memory.sequencer[sent[w].range] > sent[w].sequencer -> REACHED(ZOMBIE_WORKER_REFUSED)
    :: !ok && shard[s].memory.sequencer[sent[w].range] == 0 -> REACHED(OLD_LIFE_REFUSED)
    :: else
    fi;
#ifdef STALE_SEQUENCERS_COUNT  /* BUG: a worker that was replaced moves its range */
    ok = 1;
#endif
#ifndef OLDER_REPORTS_COUNT    /* BUG: a report that was overtaken moves its range */
    if
    :: ok && sent[w].number <= shard[s].memory.number[sent[w].range] ->
        ok = 0;
        REACHED(OLDER_REPORT_REFUSED)
    :: else
    fi
#endif
}

/* A refusal changes nothing, so nothing is appended: the store is asked whether it is this shard's to refuse anything. */
inline refuse(s, w) {
#ifdef REFUSE_UNCONFIRMED      /* BUG: a shard that was replaced calls a good claim stale */
    ok = 1;
#else
    ok = (shard[s].epoch == log_epoch);
#endif
    if
    :: !ok -> let_go(s)
    :: else ->
        assert(graph > log.incarnation || log.sequencer[sent[w].range] != sent[w].sequencer
               || log.number[sent[w].range] >= sent[w].number);   /* nobody is refused without a reason */
        if
        :: shard[s].memory.sequencer[sent[w].range] != sent[w].sequencer &&
           CLAIM_OF(sent[w].worker, sent[w].range).sequencer == sent[w].sequencer ->
            CLAIM_OF(sent[w].worker, sent[w].range).sequencer = 0;
            CLAIM_OF(sent[w].worker, sent[w].range).incarnation = 0;
            CLAIM_OF(sent[w].worker, sent[w].range).number = 0;
            CLAIM_OF(sent[w].worker, sent[w].range).lowering = 0
        :: else
        fi
    fi
}

inline begin_round(s, w) {
    ASKED.kind = sent[w].kind;
    ASKED.worker = sent[w].worker;
    ASKED.range = sent[w].range;
    ASKED.sequencer = sent[w].sequencer;
    ASKED.number = sent[w].number;
    take_record(s);
    shard[s].state = STAGED;
#ifdef ACK_BEFORE_APPEND       /* BUG: an answer before the record is durable */
    answer(s);
#endif
#ifdef PUBLISH_BEFORE_APPEND   /* BUG: a value is shown before its record is durable */
    publish(s);
#endif
}

inline stage(s, w) {
    if
    :: sent[w].kind == CLAIM && shard[s].memory.last_sequencer < CLAIMS ->
        grant(s, w);
        begin_round(s, w)
    :: sent[w].kind == REPORT ->
        accepts(s, w);
        if
        :: ok ->
            shard[s].memory.value[sent[w].range] = sent[w].value;
            shard[s].memory.number[sent[w].range] = sent[w].number;
            begin_round(s, w)
        :: else -> refuse(s, w)
        fi
    :: else                    /* more claims than the search looks at */
    fi;
    forget(sent[w])
}

inline write(s) {
    check_append(s);
    if
    :: graph > shard[s].memory.incarnation -> REACHED(OLD_LIFE_APPENDED)
    :: else
    fi;
    if
    :: s == 1 && shard[0].epoch == 1 && shard[s].memory.low > log.low && log.low > 0 -> REACHED(TAKEN_OVER_AND_PUBLISHED)
    :: else
    fi;
    if
    :: s == 0 && owners == 2 && log_epoch == 3 && shard[s].memory.low > log.low -> REACHED(TAKEN_BACK)
    :: else
    fi;
    log.incarnation = shard[s].memory.incarnation;
    log.low = shard[s].memory.low;
    log.last_sequencer = shard[s].memory.last_sequencer;
    for (i : 0 .. RANGES - 1) {
        log.value[i] = shard[s].memory.value[i];
        log.sequencer[i] = shard[s].memory.sequencer[i];
        log.number[i] = shard[s].memory.number[i]
    }
    shard[s].passed = 0;
    shard[s].state = APPENDED;
    check_kept()
}

/* Journal.append: the epoch is compared in the step that writes. */
inline append(s) {
    ok = (shard[s].epoch == log_epoch);
#ifdef NO_FENCE                /* BUG: the epoch is not compared */
    ok = 1;
#endif
    if
#ifdef FENCE_APART             /* BUG: the epoch is compared, and the write is another step */
    :: shard[s].passed -> write(s)
    :: !shard[s].passed && ok -> shard[s].passed = 1
#else
    :: ok -> write(s)
#endif
    :: else ->
        REACHED(FENCED);
#ifdef ZOMBIE_ACK              /* BUG: the append was refused, and who asked hears that it is done */
        answer(s);
#endif
        let_go(s)
    fi
}

proctype Serving(bit s) {
end:
    do
    /* beat: it hears of a newer view */
    :: d_step { shard[s].view < view -> look(s) }
    /* left out: it proposes a view without the other one, which is to serve */
    :: d_step { members == 3 && view < VIEWS && SHARD_OF(members) != s ->
        members = 1 << s;
        view++;
        look(s)
        }
    /* join: it was left out, and proposes a view with itself again */
    :: d_step { (members & (1 << s)) == 0 && view < VIEWS ->
        members = 3;
        view++;
        look(s)
        }
    /* take: it becomes the owner by a higher epoch, unless that was done under a newer view than it knows */
    :: d_step { shard[s].state == ABSENT && shard[s].mine && log_epoch < EPOCHS ->
        if
        :: log_view > shard[s].view ->
            REACHED(OUTVOTED);
            look(s)
        :: else ->
            shard[s].state = TAKING;
#ifdef LOAD_BEFORE_TAKE        /* BUG: what the owner before it appends after this look at the log is never read */
            load(s)
#else
            own(s)
#endif
        fi
        }
    /* hold: it has read what the log says, and the graph, and serves */
    :: d_step { shard[s].state == TAKING ->
#ifdef LOAD_BEFORE_TAKE
        own(s);
#else
        load(s);
#endif
        shard[s].state = SERVING;
        publish(s)
        }
    /* refresh: it reads in the graph that a new incarnation has begun */
    :: d_step { shard[s].state == SERVING && graph > shard[s].memory.incarnation ->
        restart(s);
        publish(s)
        }
    :: d_step { shard[s].state == SERVING && sent[0].kind != NOTHING -> stage(s, 0) }
    :: d_step { shard[s].state == SERVING && sent[1].kind != NOTHING -> stage(s, 1) }
    :: d_step { shard[s].state == SERVING && sent[LATE].kind != NOTHING -> stage(s, LATE) }
    :: d_step { shard[s].state == STAGED -> append(s) }
    /* publish, and answer */
    :: d_step { shard[s].state == APPENDED ->
        shard[s].state = SERVING;
        publish(s);
        answer(s);
        forget(ASKED)
        }
    /* it dies in the middle of a round, and is started again */
    :: d_step { shard[s].state == STAGED || shard[s].state == APPENDED ->
        if
        :: shard[s].state == APPENDED -> REACHED(CRASHED_UNANSWERED)
        :: else
        fi;
        let_go(s)
        }
    od
}

/* -- steps of a worker -------------------------------------------------------------------------------------------------- */

#define MINE CLAIM_OF(w, r)
#define OWNS (MINE.sequencer && GUARD(MINE.incarnation, r) == MINE.sequencer)

/* What it sent before, and nobody has taken yet, is lost, or comes late. */
inline send(w, r, what) {
    if
    :: sent[w].kind == REPORT && !delayed ->
        delayed = 1;
        move(sent[LATE], sent[w])
    :: else
    fi;
    sent[w].kind = what;
    sent[w].worker = w;
    sent[w].range = r;
    sent[w].sequencer = 0;
    sent[w].number = 0;
    sent[w].value = 0
}

/* It reports what a restart from its durable state would also report; a lowering is in each report until it is acknowledged. */
inline send_report(w, r) {
    MINE.number++;
    send(w, r, REPORT);
    sent[w].sequencer = MINE.sequencer;
    sent[w].number = MINE.number;
    sent[w].value = (MINE.lowering -> owed : TRUTH(MINE.incarnation, r))
}

proctype Working(bit w; byte r) {
end:
    do
    /* claim; the first one is worker 0 */
    :: d_step { (MINE.sequencer == 0 || MINE.incarnation < graph) && sent[w].kind == NOTHING && log.last_sequencer < CLAIMS && (w == 0 || log.last_sequencer) ->
        send(w, r, CLAIM)
        }
    /* read the durable state: whoever owned the range before writes there no more */
    :: d_step { MINE.sequencer && GUARD(MINE.incarnation, r) < MINE.sequencer -> GUARD(MINE.incarnation, r) = MINE.sequencer }
    /* finish work, durably, and then report; or say the same again */
    :: d_step { OWNS && MINE.number < NUMBERS ->
        if
        :: !MINE.lowering && TRUTH(MINE.incarnation, r) < LAST -> TRUTH(MINE.incarnation, r)++
        :: else
        fi;
        send_report(w, r)
        }
    /* lower: old work comes once more, and waits at its sender until it is known that nothing can pass it */
    :: d_step { OWNS && !lowered && MINE.number < NUMBERS && TRUTH(MINE.incarnation, r) > 0 ->
        lowered = 1;
        owed = TRUTH(MINE.incarnation, r) - 1;
        MINE.lowering = MINE.number + 1;
        send_report(w, r)
        }
    od
}

/* -- the reader, and an operator ---------------------------------------------------------------------------------------- */

#ifdef WATCH_UNCONFIRMED       /* BUG: the first value of a subscription is what a shard has, whoever owns the log by now */
#define CONFIRMED(s) 1
#else
#define CONFIRMED(s) (shard[s].epoch == log_epoch && shard[s].incarnation == graph)
#endif
#define SERVES(s) (shard[s].state == SERVING || shard[s].state == STAGED || shard[s].state == APPENDED)

inline watch(s) {
    if
    :: CONFIRMED(s) ->
        watched = s + 1;
        see(s)
    :: else ->
        if
        :: shard[s].epoch != log_epoch ->
            REACHED(ZOMBIE_SHARD_NOT_CONFIRMED)
        :: else
        fi
    fi
}

proctype Watching() {
end:
    do
    :: d_step { watched != 1 && SERVES(0) -> watch(0) }
    :: d_step { watched != 2 && SERVES(1) -> watch(1) }
    od
}

proctype Resetting() {
end:
    do
    :: d_step { graph < LIVES && log.last_sequencer > 0 -> graph++ }
    od
}

init {
    d_step {
        log.incarnation = 1;
        for (i : 0 .. 1) {
            shard[i].state = ABSENT;
            shard[i].view = view;
            shard[i].mine = (i == 0);
            shard[i].round.kind = NOTHING
        }
        for (i : 0 .. 2) {
            sent[i].kind = NOTHING
        }
    }
    atomic {
        run Serving(0);
        run Serving(1);
        run Working(0, 0);
        run Working(1, 0);
#if RANGES > 1
        run Working(0, 1);
        run Working(1, 1);
#endif
        run Watching();
        run Resetting()
    }
}
