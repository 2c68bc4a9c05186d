/* The words of docs/protocol.md: dispatch by pull or push, combine, release at any point, death at
 * any point. Explored to the end by tests/model/explore.sh.
 *
 * R ranks, N slots, at most DEATHS deaths, and dispatches without end. At each dispatch each rank
 * chooses anew whether it pushes, and whether it will combine or release. Who will combine may not
 * wait for ever: then Spin reports an invalid end state.
 *
 * Epochs are counted for each slot by itself, and from the smallest credit that a living rank has
 * given: once all have given the credit of an epoch, it becomes 0 and all that is older, too
 * (`count_anew`). Every comparison is between values of one slot, and nobody compares with 0 or less,
 * so this loses nothing; and it makes finite what has no end.
 *
 * Every memory is the epoch of what lies there. A read asserts that it finds its own epoch. Steps
 * are sequentially consistent: what a weaker order would do is not explored here.
 *
 * LOOKS 1: each look at a word is a step of its own. 0: a rank knows at once what a look would show.
 * A word only grows, and that of a lost rank is frozen; knowing more only lets a rank go on; and what
 * was read is checked again at the end of the reads. So only the order of looks is lost.
 *
 * TABLE 1: sources that push wait for the owners' base tables; 0: they sum the counts of all records;
 * 2: they put rows into windows of their own, at once.
 * PUSHERS n: the first n ranks push, always; without it, each chooses.
 * RELEASES 0: nobody releases.
 * MUTATION 1..10 plants a fault that must be found; 0 = none.
 */
#ifndef R
#define R 2
#endif
#ifndef N
#define N 1
#endif
#ifndef DEATHS
#define DEATHS (R - 1)
#endif
#ifndef TABLE
#define TABLE 0
#endif
#ifndef LOOKS
#define LOOKS 0
#endif
#ifndef RELEASES
#define RELEASES 1
#endif
#ifndef MUTATION
#define MUTATION 0
#endif
#ifdef PUSHERS
#define MAY_PUSH (r < PUSHERS)
#define MAY_PULL (r >= PUSHERS)
#else
#define MAY_PUSH true
#define MAY_PULL true
#endif

#define AT(q, s) ((q) * N + (s))            /* of rank q's slot s; or what is known of it */
#define PAIR(a, b, s) (((a) * R + (b)) * N + (s))

/* Words. */
byte pub[R * N], out[R * N], done[R * N], base[R * N], sent[R * R * N];
/* Memory. inbox and place: (owner, source); place: who was absent where the source placed its rows. */
byte record[R * N], x[R * N], y[R * N], table[R * N], inbox[R * R * N], place[R * R * N];
bool pushes[R * N]; /* a part of the record */
byte epoch[R * N];  /* the last dispatch of the slot; no word, nobody else reads it */
bool lost[R];
byte deaths = 0;
#if MUTATION == 8 /* rank 0 takes the last rank for dead, which lives */
bool slandered = false;
#define LOST(q) (lost[q] || slandered && r == 0 && q == R - 1)
#else
#define LOST(q) lost[q]
#endif

mtype = { Free, Started, Open, Have, Combining, Combined, Leaving, Released };
mtype state[R * N] = Free; /* of the lease; no word, either */

/* What a rank knows of a source's rows. */
#define WAITING 0
#define ANNOUNCED 1 /* the record is read, rows are still coming */
#define HERE 2      /* in the inbox */
#define ABSENT 3
#define UNSENT 4    /* lost after its record: zeros */
#define IN_SLOT 5   /* in the source's slot */
#define UNSET 6     /* MUTATION 7: looked at before the verdict */

#if R == 2
#define ALL(f, s) (f(0, s) && f(1, s))
#define EACH(f, s) f(0, s) f(1, s)
#define SUM(f, s) (f(0, s) + f(1, s))
#elif R == 3
#define ALL(f, s) (f(0, s) && f(1, s) && f(2, s))
#define EACH(f, s) f(0, s) f(1, s) f(2, s)
#define SUM(f, s) (f(0, s) + f(1, s) + f(2, s))
#else
#define ALL(f, s) (f(0, s) && f(1, s) && f(2, s) && f(3, s))
#define EACH(f, s) f(0, s) f(1, s) f(2, s) f(3, s)
#define SUM(f, s) (f(0, s) + f(1, s) + f(2, s) + f(3, s))
#endif

#if LOOKS
#define GOT(q, s) got[AT(q, s)]
#define SUMMED(q, s) (q == r || summed[AT(q, s)])
#else
#define GOT(q, s)                                                                               \
  (pub[AT(q, s)] < E(s) -> (LOST(q) -> ABSENT : WAITING) :                                      \
   (!pushes[AT(q, s)] -> IN_SLOT :                                                              \
    (sent[PAIR(q, r, s)] >= E(s) -> HERE :                                                      \
     (out[AT(q, s)] > 2 * E(s) -> IN_SLOT : (LOST(q) -> UNSENT : ANNOUNCED)))))
#define SUMMED(q, s)                                                                            \
  (q == r || out[AT(q, s)] == 2 * E(s) || LOST(q) && out[AT(q, s)] < 2 * E(s))
#endif
#define E(s) epoch[AT(r, s)]
#define STATE(s) state[AT(r, s)]
#define KNOWN(q, s) (q == r || GOT(q, s) != WAITING && GOT(q, s) != UNSET)
#define COMPLETE(q, s) (q == r || GOT(q, s) >= HERE && GOT(q, s) != UNSET)
#define PUT(q, s) (q == r || put[AT(q, s)] == 2 || UNWANTED(q, s))
#define NOT_PUTTING(q, s) (q == r || put[AT(q, s)] != 1)
#define MISSING(q, s) (q != r && GOT(q, s) == ABSENT -> 1 << q : 0)
#if MUTATION == 1 /* credit ignored */
#define CREDIT(q, s) true
#else
#define CREDIT(q, s) (q == r || LOST(q) || done[AT(q, s)] >= E(s))
#endif

/* What may be read now is right: records and rows of sources; outputs of owners. */
#define RIGHT(q, s)                                                                             \
  (q == r || pub[AT(q, s)] <= E(s) &&                                                           \
   (GOT(q, s) == WAITING || GOT(q, s) == ABSENT || GOT(q, s) == UNSET ||                        \
    pub[AT(q, s)] == E(s) && record[AT(q, s)] == E(s)) &&                                       \
   (GOT(q, s) != HERE || sent[PAIR(q, r, s)] == E(s) && inbox[PAIR(r, q, s)] == E(s)) &&        \
   (GOT(q, s) != IN_SLOT || x[AT(q, s)] == E(s)))
#define AGREED(q, s)                                                                            \
  (q == r || TABLE != 0 || GOT(q, s) != HERE || place[PAIR(r, q, s)] == SUM(MISSING, s))
#define OUTPUTS_RIGHT(q, s)                                                                     \
  (q == r || out[AT(q, s)] < 2 * E(s) || out[AT(q, s)] == 2 * E(s) + 1 ||                       \
   y[AT(q, s)] == E(s))

#define STORE(word, value) assert(value > word); word = value

#if LOOKS
#define SOURCE(q, s)                                                                            \
  :: d_step { q != r && STATE(s) == Open && GOT(q, s) == WAITING && pub[AT(q, s)] >= E(s) ->    \
     got[AT(q, s)] = (pushes[AT(q, s)] -> ANNOUNCED : IN_SLOT); assert(RIGHT(q, s)) }           \
  :: d_step { q != r && STATE(s) == Open && GOT(q, s) == WAITING && LOST(q) &&                  \
              pub[AT(q, s)] < E(s) -> got[AT(q, s)] = ABSENT }                                  \
  :: d_step { MUTATION == 7 && q != r && STATE(s) == Open && GOT(q, s) == WAITING &&            \
              pub[AT(q, s)] < E(s) -> got[AT(q, s)] = UNSET }                                   \
  :: d_step { MUTATION == 7 && q != r && STATE(s) == Open && GOT(q, s) == UNSET ->              \
     got[AT(q, s)] = (LOST(q) -> ABSENT : WAITING) }                                            \
  :: d_step { q != r && STATE(s) == Open && GOT(q, s) == ANNOUNCED &&                           \
              sent[PAIR(q, r, s)] >= E(s) -> got[AT(q, s)] = HERE; assert(RIGHT(q, s)) }        \
  :: d_step { q != r && STATE(s) == Open && GOT(q, s) == ANNOUNCED &&                           \
              sent[PAIR(q, r, s)] < E(s) && out[AT(q, s)] > 2 * E(s) ->                         \
     got[AT(q, s)] = IN_SLOT; assert(RIGHT(q, s)) }                                             \
  :: d_step { q != r && STATE(s) == Open && GOT(q, s) == ANNOUNCED && LOST(q) &&                \
              sent[PAIR(q, r, s)] < E(s) && out[AT(q, s)] <= 2 * E(s) ->                        \
     got[AT(q, s)] = UNSENT }                                                                   \
  :: d_step { q != r && STATE(s) == Combined && !SUMMED(q, s) && out[AT(q, s)] == 2 * E(s) ->   \
     assert(y[AT(q, s)] == E(s)); summed[AT(q, s)] = true }                                     \
  :: d_step { q != r && STATE(s) == Combined && !SUMMED(q, s) && LOST(q) &&                     \
              out[AT(q, s)] < 2 * E(s) -> summed[AT(q, s)] = true }
#else
#define SOURCE(q, s)
#endif

/* put: 0 = not yet, 1 = rows are being stored, 2 = sent */
#if TABLE == 1
#define MAY_PUT(q, s) (KNOWN(q, s) && base[AT(q, s)] >= E(s))
#define UNWANTED(q, s)                                                                          \
  (GOT(q, s) == ABSENT || put[AT(q, s)] == 0 && GOT(q, s) != WAITING &&                         \
   base[AT(q, s)] < E(s) && (LOST(q) || out[AT(q, s)] > 2 * E(s)))
#define TABLE_RIGHT(q, s) (base[AT(q, s)] == E(s) && table[AT(q, s)] == E(s))
#elif TABLE == 2
#define MAY_PUT(q, s) true
#define UNWANTED(q, s) false
#define TABLE_RIGHT(q, s) true
#else
#define MAY_PUT(q, s) ALL(KNOWN, s)
#define UNWANTED(q, s) (GOT(q, s) == ABSENT)
#define TABLE_RIGHT(q, s) (ALL(RIGHT, s))
#endif
/* Nobody looks into the inbox of a lost rank. */
#define STORE_ROWS(q, s)                                                                        \
  if :: lost[q] -> skip                                                                         \
     :: else -> inbox[PAIR(q, r, s)] = E(s); place[PAIR(q, r, s)] = SUM(MISSING, s) fi
#if MUTATION == 2 /* sent before the rows */
#define PUT_FIRST(q, s) STORE(sent[PAIR(r, q, s)], E(s))
#define PUT_SECOND(q, s) STORE_ROWS(q, s)
#else
#define PUT_FIRST(q, s) STORE_ROWS(q, s)
#define PUT_SECOND(q, s) STORE(sent[PAIR(r, q, s)], E(s))
#endif
#define OWNER(q, s)                                                                             \
  :: d_step { q != r && STATE(s) == Open && pushes[AT(r, s)] && put[AT(q, s)] == 0 &&           \
              !UNWANTED(q, s) && MAY_PUT(q, s) ->                                               \
     assert(TABLE_RIGHT(q, s)); PUT_FIRST(q, s); put[AT(q, s)] = 1 }                            \
  :: d_step { q != r && put[AT(q, s)] == 1 -> PUT_SECOND(q, s); put[AT(q, s)] = 2 }             \
  :: atomic { q != r && STATE(s) == Combined && !SUMMED(q, s) &&                                \
              out[AT(q, s)] > 2 * E(s) -> end_rank(); goto ended } /* mismatch: it has failed */

#if MUTATION == 3 /* a release leaves no rows behind */
#define LEAVE(s) skip
#else
#define LEAVE(s) if :: pushes[AT(r, s)] && !ALL(PUT, s) -> x[AT(r, s)] = E(s) :: else fi
#endif
#if MUTATION == 10 /* rows are left behind after the release is announced */
#define LEAVE_FIRST(s) STORE(out[AT(r, s)], 2 * E(s) + 1)
#define LEAVE_SECOND(s) LEAVE(s)
#else
#define LEAVE_FIRST(s) LEAVE(s)
#define LEAVE_SECOND(s) STORE(out[AT(r, s)], 2 * E(s) + 1)
#endif
#if MUTATION == 4 /* a release gives no credit */
#define GIVE_BACK(s) skip
#else
#define GIVE_BACK(s) STORE(done[AT(r, s)], E(s))
#endif
#if MUTATION == 5 /* outputs are announced before they are written */
#define OUTPUT_FIRST(s) STORE(out[AT(r, s)], 2 * E(s))
#define OUTPUT_SECOND(s) y[AT(r, s)] = E(s)
#else
#define OUTPUT_FIRST(s) y[AT(r, s)] = E(s)
#define OUTPUT_SECOND(s) STORE(out[AT(r, s)], 2 * E(s))
#endif
#if MUTATION == 6 /* credit before the reads of combine are over */
#define OUTPUT_THIRD(s) STORE(done[AT(r, s)], E(s)); count_anew(s)
#define END_OF_READS(s) skip
#else
#define OUTPUT_THIRD(s) skip
#define END_OF_READS(s) STORE(done[AT(r, s)], E(s))
#endif
#if MUTATION == 9 /* the base table is announced before it is written */
#define TABLE_STEPS(s)                                                                          \
  :: d_step { STATE(s) == Open && base[AT(r, s)] < E(s) && ALL(KNOWN, s) ->                     \
     STORE(base[AT(r, s)], E(s)) }                                                              \
  :: d_step { STATE(s) == Open && base[AT(r, s)] == E(s) && table[AT(r, s)] < E(s) ->           \
     table[AT(r, s)] = E(s) }
#else
#define TABLE_STEPS(s)                                                                          \
  :: d_step { TABLE == 1 && STATE(s) == Open && table[AT(r, s)] < E(s) && ALL(KNOWN, s) ->      \
     table[AT(r, s)] = E(s) }                                                                   \
  :: d_step { TABLE == 1 && STATE(s) == Open && base[AT(r, s)] < table[AT(r, s)] ->             \
     STORE(base[AT(r, s)], E(s)) }
#endif

hidden byte i, j;

inline older(value, by) { value = (value > by -> value - by : 0) }

inline count_anew(s) {
  i = 0;
  do
  :: i < R && (lost[i] || done[AT(i, s)] > 0 &&
               (state[AT(i, s)] == Free || epoch[AT(i, s)] > 1)) -> i++
  :: else -> break
  od;
  if
  :: i == R ->
     for (i : 0 .. R - 1) {
       older(epoch[AT(i, s)], 1); older(pub[AT(i, s)], 1); older(out[AT(i, s)], 2);
       older(done[AT(i, s)], 1); older(base[AT(i, s)], 1); older(record[AT(i, s)], 1);
       older(x[AT(i, s)], 1); older(y[AT(i, s)], 1); older(table[AT(i, s)], 1);
       if :: pub[AT(i, s)] == 0 && epoch[AT(i, s)] == 0 -> pushes[AT(i, s)] = 0 :: else fi;
       if :: out[AT(i, s)] == 1 -> out[AT(i, s)] = 0 :: else fi; /* below 2: older than all */
       for (j : 0 .. R - 1) {
         older(sent[PAIR(i, j, s)], 1); older(inbox[PAIR(i, j, s)], 1);
         if :: inbox[PAIR(i, j, s)] == 0 -> place[PAIR(i, j, s)] = 0 :: else fi
       }
     }
  :: else
  fi;
  i = 0; j = 0
}

#if LOOKS
#define FORGET_LOOKS(q, s) got[AT(q, s)] = WAITING; summed[AT(q, s)] = false
#else
#define FORGET_LOOKS(q, s) skip
#endif
inline forget(s) {
  for (i : 0 .. R - 1) { put[AT(i, s)] = 0; FORGET_LOOKS(i, s) }
  giving_up[s] = false
}
inline end_slot(s) {
  forget(s); STATE(s) = Free; epoch[AT(r, s)] = 0; done[AT(r, s)] = 0;
  for (i : 0 .. R - 1) { inbox[PAIR(r, i, s)] = 0; place[PAIR(r, i, s)] = 0 }
  count_anew(s)
}

inline end_rank() {
  d_step {
    lost[r] = true; turn = 0;
    end_slot(0);
    if :: N == 2 -> end_slot(N - 1) :: else fi
  }
}

#define START(s, may, push, give)                                                               \
  :: d_step { (may) && STATE(s) == Free && turn == s && ALL(CREDIT, s) ->                       \
     E(s) = E(s) + 1; assert(E(s) <= 2 || MUTATION == 1);                                       \
     record[AT(r, s)] = E(s); pushes[AT(r, s)] = push; giving_up[s] = give;                     \
     if :: !push -> x[AT(r, s)] = E(s) :: else -> x[AT(r, s)] = 0 fi;                           \
     y[AT(r, s)] = 0; table[AT(r, s)] = 0;                                                      \
     turn = (turn + 1) % N; STATE(s) = Started }

#define SLOT(s)                                                                                 \
  START(s, MAY_PULL, 0, 0)                                                                      \
  START(s, MAY_PUSH, 1, 0)                                                                      \
  START(s, MAY_PULL && RELEASES, 0, 1)                                                          \
  START(s, MAY_PUSH && RELEASES, 1, 1)                                                          \
  :: d_step { STATE(s) == Started -> STORE(pub[AT(r, s)], E(s)); STATE(s) = Open }              \
  TABLE_STEPS(s)                                                                                \
  :: d_step { STATE(s) == Open && ALL(COMPLETE, s) && (!pushes[AT(r, s)] || ALL(PUT, s)) &&     \
              (TABLE != 1 || base[AT(r, s)] == E(s)) && ALL(NOT_PUTTING, s) ->                  \
     assert(ALL(RIGHT, s)); assert(ALL(AGREED, s)); STATE(s) = Have }                           \
  :: d_step { STATE(s) == Have -> assert(ALL(RIGHT, s)); OUTPUT_FIRST(s);                       \
     STATE(s) = Combining }                                                                     \
  :: d_step { STATE(s) == Combining -> OUTPUT_SECOND(s); OUTPUT_THIRD(s); STATE(s) = Combined } \
  :: d_step { STATE(s) == Combined && (giving_up[s] || ALL(SUMMED, s)) ->                       \
     assert(ALL(OUTPUTS_RIGHT, s)); END_OF_READS(s); forget(s); STATE(s) = Free;                \
     count_anew(s) }                                                                            \
  :: d_step { giving_up[s] && (STATE(s) == Open || STATE(s) == Have) && ALL(NOT_PUTTING, s) ->  \
     assert(ALL(RIGHT, s)); LEAVE_FIRST(s); STATE(s) = Leaving }                                \
  :: d_step { STATE(s) == Leaving -> LEAVE_SECOND(s); STATE(s) = Released }                     \
  :: d_step { STATE(s) == Released -> GIVE_BACK(s); forget(s); STATE(s) = Free; count_anew(s) } \
  EACH(SOURCE, s) EACH(OWNER, s)

#if N == 1
#define SLOTS SLOT(0)
#else
#define SLOTS SLOT(0) SLOT(1)
#endif

proctype Rank(byte r) {
  byte turn = 1 % N; /* the slot of the next dispatch */
  byte put[R * N];
  bool giving_up[N];
#if LOOKS
  byte got[R * N];
  bool summed[R * N];
#endif
  do
    SLOTS
    :: atomic { deaths < DEATHS -> deaths++; end_rank(); goto ended }
#if MUTATION == 8
    :: r == 0 && !slandered -> slandered = true
#endif
  od;
ended:
  skip
}

init {
  atomic {
    byte r;
    for (r : 0 .. R - 1) { run Rank(r) }
    r = 0
  }
}
