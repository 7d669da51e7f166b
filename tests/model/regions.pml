/* Two regions, one of which produces a computation, and the take-over of it, for spin. docs/concepts/simulation.md says how it is run, and what it leaves out.
   The code has steps of these names: regions/src/lowwater_regions/references.py, and docs/operate/regions.md.

   A global record says which region is the owner, by which adoption number, and what is published: each change of it is one compare-and-set. The
   owner makes batches, commits them at a sink that both regions reach, and moves its low watermark L behind them. A mirror copies what it has to the
   other region, up to the replicated frontier R. The policy is `replicated`: min(L, R) is published.

     all        silent (SUSPECT), adopt
     region     raise (the fence token of the sink), commit, mirror, publish, confirm
     accidents  cut, heal, restart

   A step is atomic, and between two steps of a region the other may make any number of its own: so a region that is frozen is one that makes no step
   for a while, and one that has died is cut off and makes none any more. No step looks at a clock: a region becomes SUSPECT whether it is dead or not.

   Behind "BUG" stands what is wrong when the switch in front of it is set: the search must find it. REACHED(X) stands where something worth a
   look has happened: with -DGOAL=X the search must come there. -DBY_HARM leaves out the assertions that repeat a rule, so that only harm is found. */

#ifndef BATCHES
#define BATCHES 3              /* L and R count them */
#endif
#ifndef ADOPTIONS
#define ADOPTIONS 3            /* the highest adoption number; the first owner has 1 */
#endif

#ifndef GOAL
#define GOAL 0
#endif
#define ADOPTED 1
#define SUSPECT_CAME_BACK 2
#define RETURNED_AND_REFUSED 3
#define COMMIT_REFUSED 4
#define PUBLISH_REFUSED 5
#define RAISE_REFUSED 6
#define COMMITTED_AFTER_ADOPTION 7
#define FOUND_IN_SINK 8
#define HELD_AT_R 9
#define PUBLISHED_BY_THE_NEXT 10
#define TAIL_SET_ASIDE 11
#define BACK_AND_DONE 12
#define REACHED(x) assert(GOAL != x)

typedef Record {
    byte owner;
    byte number;               /* the adoption number, which is the token at sinks */
    byte published;
    bit suspect
}
Record global;

typedef Region {
    byte number;               /* by which it owns the computation, as far as it knows; 0: it stands by */
    bit confirmed;             /* the global level has said so since it was started, or had its link back */
    bit linked;                /* to the global level, and to the other region */
    byte low;                  /* L */
    bit raised;                /* the sink has its token, and it has read what the sink has */
    byte known;                /* the last batch that the sink had then */
    bit publishing;            /* a compare-and-set is under way */
    byte value;                /* what that will publish */
    bit checked;               /* see NO_TOKEN_IN_WRITE */
    bit returned               /* it came back, and the global level was not asked since: only the assertions read this */
}
Region region[2];
#define OTHER(x) (1 - (x))

byte replicated;               /* R: what both regions have, so that it survives either of them */

byte token = 1;                /* of the sink, which has it in the same store as the batches */
byte batch;                    /* the last one that the sink has */

byte highest = 1;              /* of all tokens that the sink ever had */
byte writer[ADOPTIONS + 1];    /* the region, plus 1, that has committed under a number */

hidden byte least;
hidden byte ok;

/* -- what must hold ----------------------------------------------------------------------------------------------------- */

inline check_commit(x) {
    assert(region[x].number >= highest);                                 /* a region that was replaced commits nothing */
    assert(writer[region[x].number] == 0 || writer[region[x].number] == x + 1);   /* one region commits under a number */
    assert(batch + 1 == region[x].low + 1);                              /* each batch once, none left out */
#ifndef BY_HARM
    assert(!region[x].returned);                                         /* nothing before it is confirmed */
#endif
}

inline check_publish(x) {
    assert(region[x].value >= global.published);                         /* it does not go back */
#ifndef BY_HARM
    assert(region[x].value <= replicated);                               /* what is published survives */
    assert(global.owner == x && global.number == region[x].number);
    assert(!region[x].returned);
#endif
}

/* -- steps of a region -------------------------------------------------------------------------------------------------- */

/* It is not the owner, or may not be any more. What only this region has is set aside, and never merged. */
inline stand_by(x) {
    if
    :: region[x].low > replicated -> REACHED(TAIL_SET_ASIDE)
    :: else
    fi;
    region[x].number = 0;
    region[x].confirmed = 0;
    region[x].low = 0;
    region[x].raised = 0;
    region[x].known = 0;
    region[x].publishing = 0;
    region[x].value = 0;
    region[x].checked = 0;
    region[x].returned = 0
}

/* What was said before it came back, and is on its way, is given up. */
inline come_back(x) {
    region[x].publishing = 0;
    region[x].value = 0;
    region[x].checked = 0;
    region[x].returned = (region[x].number > 0);
#ifndef NO_CONFIRM             /* BUG: it goes on as it was */
    region[x].confirmed = 0
#endif
}

inline doubt(x) {
    region[x].confirmed = 0;
    region[x].checked = 0
}

inline write(x) {
    if
    :: region[x].low + 1 <= region[x].known -> REACHED(FOUND_IN_SINK)    /* its predecessor has committed it */
    :: else ->
        check_commit(x);
        if
        :: global.number > region[x].number -> REACHED(COMMITTED_AFTER_ADOPTION)
        :: else
        fi;
        batch = region[x].low + 1;
        writer[region[x].number] = x + 1
    fi;
    region[x].low++;
    region[x].checked = 0
}

/* The sink compares the token in the write. */
inline commit(x) {
    ok = (token == region[x].number);
#ifdef NO_TOKEN_IN_WRITE       /* BUG: the token is compared, and the write is another step, which compares nothing */
    if
    :: region[x].checked -> write(x)
    :: !region[x].checked && ok -> region[x].checked = 1
#else
    if
    :: ok -> write(x)
#endif
    :: else ->
        REACHED(COMMIT_REFUSED);
        doubt(x)
    fi
}

/* The sink takes no token that is lower than its own. What it has is read behind that: nobody else adds to it any more. */
inline raise(x) {
    ok = (token <= region[x].number);
#ifdef RAISED_DOWNWARDS        /* BUG: who comes later wins, as with the transactional id of a Kafka producer */
    ok = 1;
#endif
    if
    :: ok ->
        token = region[x].number;
        if
        :: token > highest -> highest = token
        :: else
        fi;
        region[x].raised = 1;
#ifndef READ_BEFORE_RAISE      /* BUG: what it has was read when the computation was adopted */
        region[x].known = batch
#endif
    :: else ->
        REACHED(RAISE_REFUSED);
        doubt(x)
    fi
}

inline choose(x) {
    least = region[x].low;
#ifndef PUBLISH_L              /* BUG, but for a computation with the policy `local`: L is published */
    if
#ifdef SILENT_REPLICA_LEFT_OUT /* BUG: a region that is away holds nothing back */
    :: !region[OTHER(x)].linked -> skip
#endif
    :: replicated < least -> least = replicated
    :: else
    fi
#endif
}

/* The compare-and-set of the record: owner and number are compared in the step that writes. It is the sign of life, too. */
inline publish(x) {
    ok = (global.owner == x && global.number == region[x].number);
#ifdef NO_NUMBER_IN_RECORD     /* BUG: it is written whoever the owner is */
    ok = 1;
#endif
    if
    :: ok ->
        check_publish(x);
        if
        :: region[x].low > replicated && region[x].value == replicated && replicated > 0 -> REACHED(HELD_AT_R)
        :: else
        fi;
        if
        :: global.number > 1 && region[x].value > global.published -> REACHED(PUBLISHED_BY_THE_NEXT)
        :: else
        fi;
        if
        :: global.number == 3 && region[x].value == BATCHES -> REACHED(BACK_AND_DONE)
        :: else
        fi;
        global.published = region[x].value;
        global.suspect = 0
    :: else ->
        REACHED(PUBLISH_REFUSED);
        doubt(x)
    fi;
    region[x].publishing = 0;
    region[x].value = 0
}

inline confirm(x) {
    if
    :: global.owner == x && global.number == region[x].number ->
        if
        :: global.suspect -> REACHED(SUSPECT_CAME_BACK)
        :: else
        fi;
        region[x].confirmed = 1;
        region[x].returned = 0;
        global.suspect = 0
    :: else ->
        if
        :: region[x].returned -> REACHED(RETURNED_AND_REFUSED)
        :: else
        fi;
        stand_by(x)
    fi
}

/* An operator decides it, or a policy does where the sink compares tokens and R is known: the steps are the same. */
inline adopt(x) {
    REACHED(ADOPTED);
    global.owner = x;
#ifndef REISSUED_NUMBER        /* BUG: a record from a backup gives a number out again */
    global.number++;
#endif
    global.suspect = 0;
    region[x].number = global.number;
    region[x].confirmed = 1;
    region[x].low = replicated;
#ifdef READ_BEFORE_RAISE
    region[x].known = batch;
#endif
}

#define WORKS(x) (region[x].number && region[x].confirmed)

proctype Producing(bit x) {
end:
    do
    :: d_step { WORKS(x) && !region[x].raised -> raise(x) }
    :: d_step { WORKS(x) && region[x].raised && region[x].low < BATCHES -> commit(x) }
    /* mirror: not to a region that owns the computation, or believes so */
    :: d_step { WORKS(x) && region[x].linked && region[OTHER(x)].linked && region[OTHER(x)].number == 0 && region[x].low > replicated -> replicated++ }
    /* what it publishes is chosen first, and written later */
    :: d_step { WORKS(x) && region[x].linked && !region[x].publishing ->
        choose(x);
        region[x].value = least;
        region[x].publishing = 1
        }
    :: d_step { WORKS(x) && region[x].linked && region[x].publishing -> publish(x) }
    :: d_step { region[x].linked && region[x].number && !region[x].confirmed -> confirm(x) }
    /* cut: it may go on, and reaches the sink */
    :: d_step { region[x].linked -> region[x].linked = 0 }
    /* heal */
    :: d_step { !region[x].linked ->
        region[x].linked = 1;
        come_back(x)
        }
    /* restart: it knows by which number it was the owner, and where it was */
    :: d_step { region[x].number && !region[x].returned ->
        come_back(x);
        region[x].raised = 0;
        region[x].known = 0
        }
    od
}

proctype Deciding() {
end:
    do
    /* silent for too long, or so it seems: nothing moves by that alone */
    :: d_step { !global.suspect -> global.suspect = 1 }
    :: d_step { global.suspect && global.owner != 0 && region[0].linked && region[0].number == 0 && global.number < ADOPTIONS -> adopt(0) }
    :: d_step { global.suspect && global.owner != 1 && region[1].linked && region[1].number == 0 && global.number < ADOPTIONS -> adopt(1) }
    od
}

init {
    d_step {
        global.number = 1;
        region[0].number = 1;
        region[0].confirmed = 1;
        region[0].raised = 1;
        region[0].linked = 1;
        region[1].linked = 1
    }
    atomic {
        run Producing(0);
        run Producing(1);
        run Deciding()
    }
}
