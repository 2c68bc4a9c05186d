/* The words of docs/protocol.md: dispatch by pull or push, combine, release at any point, death at
 * any point. Explored to the end by tests/model/explore.sh.
 *
 * R ranks, N slots, EPOCHS dispatches by each rank, at most DEATHS deaths. TABLE: pushing sources
 * wait for the owners' base tables; otherwise they sum the counts of all records themselves.
 *
 * Every memory is the epoch of what lies there. A read asserts that it finds its own epoch. Steps
 * are sequentially consistent: what a weaker order would do is not explored here.
 *
 * MUTATION 1..6 plants a fault that must be found; 0 = none.
 */
#ifndef R
#define R 2
#endif
#ifndef N
#define N 1
#endif
#ifndef EPOCHS
#define EPOCHS 3
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef TABLE
#define TABLE 0
#endif
#ifndef MUTATION
#define MUTATION 0
#endif

#define AT(q, s) ((q) * N + (s))            /* of rank q's slot s */
#define PAIR(a, b, s) (((a) * R + (b)) * N + (s))

byte pub[R * N], out[R * N], done[R * N], base[R * N], sent[R * R * N];
byte record[R * N], x[R * N], y[R * N], inbox[R * R * N]; /* inbox: (owner, source) */
bool pushes[R], lost[R];
byte deaths = 0;

mtype = { Free, Started, Open, Have, Combining, Combined, Leaving, Released };

/* What a rank knows of a source's rows, and of an owner. */
#define WAITING 0
#define ANNOUNCED 1 /* the record is read, rows are still coming */
#define HERE 2      /* in the inbox */
#define ABSENT 3
#define UNSENT 4    /* lost after its record: zeros */
#define IN_SLOT 5   /* in the source's slot */

#if R == 2
#define ALL(f, s) (f(0, s) && f(1, s))
#elif R == 3
#define ALL(f, s) (f(0, s) && f(1, s) && f(2, s))
#endif

#define KNOWN(q, s) (q == r || got[PEER(q, s)] != WAITING)
#define COMPLETE(q, s) (q == r || got[PEER(q, s)] >= HERE)
#define PUT(q, s) (q == r || put[PEER(q, s)] == 2)
#define NOT_PUTTING(q, s) (q == r || put[PEER(q, s)] != 1)
#define SUMMED(q, s) (q == r || summed[PEER(q, s)])
#define PEER(q, s) ((q) * N + (s))
#if MUTATION == 1 /* credit ignored */
#define CREDIT(q, s) true
#else
#define CREDIT(q, s) (q == r || lost[q] || done[AT(q, s)] + N >= next)
#endif
#define RIGHT(q, s)                                                              \
  (q == r || (got[PEER(q, s)] != HERE || inbox[PAIR(r, q, s)] == epoch[s]) &&    \
                 (got[PEER(q, s)] != IN_SLOT || x[AT(q, s)] == epoch[s]))

#define STORE(word, value) assert(value > word); word = value

#define SOURCE(q, s)                                                                            \
  :: d_step { q != r && state[s] == Open && got[PEER(q, s)] == WAITING &&                       \
              pub[AT(q, s)] >= epoch[s] ->                                                      \
     assert(pub[AT(q, s)] == epoch[s] && record[AT(q, s)] == epoch[s]);                         \
     got[PEER(q, s)] = (pushes[q] -> ANNOUNCED : IN_SLOT) }                                     \
  :: d_step { q != r && state[s] == Open && got[PEER(q, s)] == WAITING && lost[q] &&            \
              pub[AT(q, s)] < epoch[s] -> got[PEER(q, s)] = ABSENT }                            \
  :: d_step { q != r && state[s] == Open && got[PEER(q, s)] == ANNOUNCED &&                     \
              sent[PAIR(q, r, s)] >= epoch[s] ->                                                \
     assert(sent[PAIR(q, r, s)] == epoch[s]); got[PEER(q, s)] = HERE }                          \
  :: d_step { q != r && state[s] == Open && got[PEER(q, s)] == ANNOUNCED &&                     \
              sent[PAIR(q, r, s)] < epoch[s] && out[AT(q, s)] > 2 * epoch[s] ->                 \
     got[PEER(q, s)] = IN_SLOT }                                                                \
  :: d_step { q != r && state[s] == Open && got[PEER(q, s)] == ANNOUNCED && lost[q] &&          \
              sent[PAIR(q, r, s)] < epoch[s] && out[AT(q, s)] <= 2 * epoch[s] ->                \
     got[PEER(q, s)] = UNSENT }

/* put: 0 = not yet, 1 = rows are stored, 2 = sent, or not wanted */
#if TABLE
#define MAY_PUT(q, s) (base[AT(q, s)] == epoch[s])
#define UNWANTED(q, s)                                                                          \
  (got[PEER(q, s)] == ABSENT ||                                                                 \
   base[AT(q, s)] < epoch[s] && (lost[q] || out[AT(q, s)] > 2 * epoch[s]))
#else
#define MAY_PUT(q, s) ALL(KNOWN, s)
#define UNWANTED(q, s) (got[PEER(q, s)] == ABSENT)
#endif
#if MUTATION == 2 /* sent before the rows */
#define FIRST(q, s) STORE(sent[PAIR(r, q, s)], epoch[s])
#define SECOND(q, s) inbox[PAIR(q, r, s)] = epoch[s]
#else
#define FIRST(q, s) inbox[PAIR(q, r, s)] = epoch[s]
#define SECOND(q, s) STORE(sent[PAIR(r, q, s)], epoch[s])
#endif
#define OWNER(q, s)                                                                             \
  :: d_step { q != r && pushes[r] && state[s] == Open && put[PEER(q, s)] == 0 &&                \
              got[PEER(q, s)] != WAITING && !UNWANTED(q, s) && MAY_PUT(q, s) ->                 \
     FIRST(q, s); put[PEER(q, s)] = 1 }                                                         \
  :: d_step { q != r && put[PEER(q, s)] == 1 -> SECOND(q, s); put[PEER(q, s)] = 2 }             \
  :: d_step { q != r && pushes[r] && state[s] == Open && put[PEER(q, s)] == 0 &&                \
              UNWANTED(q, s) -> put[PEER(q, s)] = 2 }                                           \
  :: d_step { q != r && state[s] == Combined && !summed[PEER(q, s)] &&                          \
              out[AT(q, s)] == 2 * epoch[s] ->                                                  \
     assert(y[AT(q, s)] == epoch[s]); summed[PEER(q, s)] = true }                               \
  :: d_step { q != r && state[s] == Combined && !summed[PEER(q, s)] &&                          \
              (got[PEER(q, s)] == ABSENT || lost[q] && out[AT(q, s)] < 2 * epoch[s]) ->         \
     summed[PEER(q, s)] = true }                                                                \
  :: q != r && state[s] == Combined && !summed[PEER(q, s)] &&                                   \
     out[AT(q, s)] == 2 * epoch[s] + 1 -> goto ended /* mismatch: this rank has failed */

#if MUTATION == 3 /* a release leaves no rows behind */
#define LEAVE(s) skip
#else
#define LEAVE(s) if :: pushes[r] && !ALL(PUT, s) -> x[AT(r, s)] = epoch[s] :: else fi
#endif
#if MUTATION == 4 /* a release gives no credit */
#define GIVE_BACK(s) skip
#else
#define GIVE_BACK(s) STORE(done[AT(r, s)], epoch[s])
#endif
#if MUTATION == 5 /* outputs are announced before they are written */
#define OUTPUT_FIRST(s) STORE(out[AT(r, s)], 2 * epoch[s])
#define OUTPUT_SECOND(s) y[AT(r, s)] = epoch[s]
#else
#define OUTPUT_FIRST(s) y[AT(r, s)] = epoch[s]
#define OUTPUT_SECOND(s) STORE(out[AT(r, s)], 2 * epoch[s])
#endif
#if MUTATION == 6 /* credit before the reads of combine are over */
#define OUTPUT_THIRD(s) STORE(done[AT(r, s)], epoch[s])
#define END_OF_READS(s) skip
#else
#define OUTPUT_THIRD(s) skip
#define END_OF_READS(s) STORE(done[AT(r, s)], epoch[s])
#endif

#define FORGET(q, s) got[PEER(q, s)] = WAITING; put[PEER(q, s)] = 0; summed[PEER(q, s)] = false
#if R == 2
#define FORGET_ALL(s) FORGET(0, s); FORGET(1, s)
#define EACH(s) SOURCE(0, s) SOURCE(1, s) OWNER(0, s) OWNER(1, s)
#else
#define FORGET_ALL(s) FORGET(0, s); FORGET(1, s); FORGET(2, s)
#define EACH(s) SOURCE(0, s) SOURCE(1, s) SOURCE(2, s) OWNER(0, s) OWNER(1, s) OWNER(2, s)
#endif

#define SLOT(s)                                                                                 \
  :: d_step { next <= EPOCHS && next % N == s && state[s] == Free && ALL(CREDIT, s) ->          \
     FORGET_ALL(s); epoch[s] = next; record[AT(r, s)] = next;                                   \
     if :: !pushes[r] -> x[AT(r, s)] = next :: else fi;                                         \
     next++; state[s] = Started }                                                               \
  :: d_step { state[s] == Started -> STORE(pub[AT(r, s)], epoch[s]); state[s] = Open }          \
  :: d_step { TABLE && state[s] == Open && base[AT(r, s)] < epoch[s] && ALL(KNOWN, s) ->        \
     base[AT(r, s)] = epoch[s] }                                                                \
  :: d_step { state[s] == Open && ALL(COMPLETE, s) && (!pushes[r] || ALL(PUT, s)) &&            \
              (!TABLE || base[AT(r, s)] == epoch[s]) ->                                         \
     assert(ALL(RIGHT, s)); state[s] = Have }                                                   \
  :: d_step { state[s] == Have -> assert(ALL(RIGHT, s)); OUTPUT_FIRST(s);                       \
     state[s] = Combining }                                                                     \
  :: d_step { state[s] == Combining -> OUTPUT_SECOND(s); OUTPUT_THIRD(s); state[s] = Combined } \
  :: d_step { state[s] == Combined && ALL(SUMMED, s) -> END_OF_READS(s); state[s] = Free }          \
  :: d_step { (state[s] == Open || state[s] == Have) && ALL(NOT_PUTTING, s) ->                  \
     if :: state[s] == Have -> assert(ALL(RIGHT, s)) :: else fi;                                \
     LEAVE(s); state[s] = Leaving }                                                             \
  :: d_step { state[s] == Leaving -> STORE(out[AT(r, s)], 2 * epoch[s] + 1);                    \
     state[s] = Released }                                                                      \
  :: d_step { state[s] == Released -> GIVE_BACK(s); state[s] = Free }                           \
  EACH(s)

#if N == 1
#define ALL_FREE (state[0] == Free)
#define SLOTS SLOT(0)
#else
#define ALL_FREE (state[0] == Free && state[1] == Free)
#define SLOTS SLOT(0) SLOT(1)
#endif

proctype Rank(byte r) {
  byte next = 1;
  mtype state[N] = Free;
  byte epoch[N], got[R * N], put[R * N];
  bool summed[R * N];
  do
    SLOTS
    :: deaths < DEATHS -> deaths++; goto ended
    :: next > EPOCHS && ALL_FREE -> goto ended /* leaves */
  od;
ended:
  lost[r] = true
}

init {
  atomic {
    byte r;
    for (r : 0 .. R - 1) {
      if :: pushes[r] = true :: pushes[r] = false fi
    }
    for (r : 0 .. R - 1) { run Rank(r) }
  }
}
