/* An account of whom a job waits for on this daemon, and for how long. The data path feeds it with
 * what it knows anyway, and the engine reads it ten times a second.
 *
 * A collective waits for a rank of this node when that rank alone has not come, a chunk at its
 * owner waits for a node when that node alone has not been heard, and this node waits for an owner
 * when that one alone owes it results. The account counts the time in which anything waits for
 * somebody: buckets that wait for one rank at once cost the job that time once. Each figure is thus
 * the time that the job would save without the one who is named.
 *
 * Every event costs a few additions: nothing is allocated, no clock is read. Times are those of the
 * exchange. Figures are of the last 2 to 4 s, or, where collectives are rare, of up to two minutes.
 *
 * Pure. Calls nothing. */
#ifndef SERVER_WAITS_WAITS_H
#define SERVER_WAITS_WAITS_H

#include <stdbool.h>
#include <stdint.h>

#define WAITS_NOBODY UINT32_MAX
#define WAITS_RANKS 2u /* of a node, those that are told: who was waited for longest */
#define WAITS_NODES 4u /* likewise */
#define WAITS_ASKS 128u
#define WAITS_OWNED 16u /* a power of two */
#define WAITS_PAST 32u  /* halves that are remembered */
#define WAITS_WORDS 43u /* of figures, packed */

/* Time in which at least one thing waits. Halves of the window: the present one, and the one
 * before. */
struct wait {
    uint32_t open; /* things that wait now */
    uint32_t times[2];
    uint64_t since_ns; /* while one does: until here it is in `ns` */
    uint64_t ns[2];
};

/* A rank of this node. */
struct waits_rank {
    struct wait start; /* it has not submitted, the node's other ranks have */
    struct wait give;  /* all have submitted, and it has not handed all of its data over */
};

/* A node of the roster, as an owner here sees it; this node itself too. */
struct waits_node {
    struct wait start; /* since the wait for it began nothing has come of it */
    struct wait flow;  /* something has, and more is lacking */
    struct wait all;   /* either of these, or it alone owes results */
    uint32_t results;  /* that it owes this node */
    uint64_t counted;  /* the newest collective that is in `times`, + 1 */
};

struct waits {
    uint64_t began_ns[2]; /* of the halves */
    uint64_t still_ns[2]; /* the engine's count of it when they began */
    uint32_t collectives[2];
    uint32_t gathered[2];         /* collectives of which this node owns chunks */
    uint64_t owned[WAITS_OWNED];  /* the last of these, + 1 */
    struct wait tasks;            /* sums and copies under way */
    struct wait gather;           /* a chunk here has this node's part, and lacks others' */
    uint32_t past_us[WAITS_PAST]; /* of halves: in which a collective was under way, for each */
    uint32_t past_count;          /* that there have been, of the same pattern */
    uint32_t past_pattern;        /* which that is */
    uint32_t owing;               /* nodes that owe results */
    uint32_t owing_xor;           /* their numbers, xor: of one, that */
    uint32_t owing_alone;         /* the one, + 1, for which this node waits; or 0 */
    uint32_t asked;               /* asks that have been noted, modulo 2^32 */
    uint32_t asks[WAITS_ASKS];
    struct waits_node *nodes; /* [node_count] */
    uint32_t node_count;
};

/* Figures that a daemon tells of a job. Times are in microseconds. */
struct waits_figures {
    uint32_t window_us; /* of all below; 0: there are none */
    uint32_t collectives;
    uint32_t step;     /* collectives that repeat: of a step; 0: no pattern was seen */
    uint32_t gathered; /* collectives of which the node owns chunks */
    uint32_t tasks_us; /* sums and copies were under way */
    uint32_t still_us; /* the engine did not run though it had to */
    uint32_t self_us;  /* chunks here had all but this node's own part */
    uint32_t self_times;
    uint32_t
        opened_us; /* collectives were under way that all of its ranks have begun; the caller's */
    uint32_t sound_us;  /* the same for each collective, as it was in good times; 0: not known */
    uint32_t gather_us; /* chunks here had this node's own part, and not all of the others' */
    uint32_t ranks;     /* of this node */
    uint32_t own;       /* this node's number */
    struct {
        uint32_t rank; /* of the job; WAITS_NOBODY: and none behind it */
        uint32_t start_us, give_us;
        uint32_t times; /* collectives that it began last */
        uint32_t gives; /* collectives of which it was the last to hand over its data */
    } rank[WAITS_RANKS];
    struct {
        uint32_t node; /* of the roster; WAITS_NOBODY: and none behind it */
        uint32_t start_us, flow_us;
        uint32_t all_us; /* either of these, or it alone owed results */
        uint32_t times;  /* collectives of which something waited for it */
    } node[WAITS_NODES];
};

void wait_begin(struct wait *wait, uint64_t now_ns);
void wait_end(struct wait *wait, uint64_t now_ns);

/* `nodes`: zeroed, [node_count], the caller's. */
void waits_init(struct waits *waits, struct waits_node *nodes, uint32_t node_count, uint64_t now_ns,
                uint64_t still_ns);
/* All ranks of this node have begun a collective; `ask` is a hash of what they asked for. */
void waits_collective(struct waits *waits, uint32_t ask);
/* A chunk that this node owns has been contributed by all nodes. */
void waits_gathered(struct waits *waits, uint64_t sequence);
/* Something of a collective waits for the node alone. */
void waits_node_lacks(struct waits *waits, uint32_t node, uint64_t sequence, uint64_t now_ns);
/* Something of it has come. */
void waits_node_heard(struct waits *waits, uint32_t node, uint64_t now_ns);
/* Something that waited for the node alone does so no more. */
void waits_node_done(struct waits *waits, uint32_t node, uint64_t now_ns);
/* Another node has all that it needs of this one for a result; the result has come, or nobody waits
 * for it any more. */
void waits_result_lacks(struct waits *waits, uint32_t node, uint64_t now_ns);
void waits_result_done(struct waits *waits, uint32_t node, uint64_t now_ns);

/* Whether the present half of the window is over; then waits_turn, and waits_rank_turn for each
 * rank of the node, begin the next one. To be asked every 100 ms or so. */
bool waits_half_over(const struct waits *waits, uint64_t now_ns);
void waits_turn(struct waits *waits, uint64_t now_ns, uint64_t still_ns);
/* After that: for how long collectives were under way in the half before. */
void waits_remember(struct waits *waits, uint64_t opened_ns);
void waits_rank_turn(struct waits_rank *rank, uint64_t now_ns);

/* Tell what the account says now, without ranks; `self` is this node's number. Then tell of each
 * rank. */
void waits_tell(const struct waits *waits, uint32_t self, uint64_t now_ns, uint64_t still_ns,
                struct waits_figures *figures);
void waits_tell_rank(const struct waits_rank *it, uint32_t rank, uint64_t now_ns,
                     struct waits_figures *figures);

/* Figures as numbers of a message, and back. False: they make no sense. */
void waits_pack(const struct waits_figures *figures, uint32_t words[WAITS_WORDS]);
bool waits_unpack(struct waits_figures *figures, const uint32_t *words, uint32_t count);

#endif
