/* How a job's time on this daemon splits: nothing of it is under way here (its ranks compute), or
 * collectives are, behind computing (hidden) or with nothing beside them (exposed).
 *
 * The daemon does not see what the ranks do, only when they begin collectives. While some are under
 * way the ranks can begin more, so until the last of them began there was something to compute;
 * from then until none is under way they are taken to wait. A program that computes between its
 * last collective and the wait for it has less exposed than is told, never more.
 *
 * Figures are of the last two halves of a window, which the caller turns. Times are those of the
 * exchange. Pure. Calls nothing. */
#ifndef SERVER_WAITS_OVERLAP_H
#define SERVER_WAITS_OVERLAP_H

#include <stdint.h>

struct overlap {
    uint64_t began_ns[2];   /* of the halves: the present one, and the one before */
    uint64_t hidden_ns[2];  /* in these */
    uint64_t exposed_ns[2]; /* likewise */
    uint64_t newest_ns;     /* some are under way: when the newest began; until here all is in the
                             * halves */
    uint32_t open;          /* collectives under way */
};

/* In microseconds. The rest of the window is computing. */
struct overlap_figures {
    uint32_t window_us; /* 0: there are none */
    uint32_t hidden_us, exposed_us;
};

void overlap_init(struct overlap *overlap, uint64_t now_ns);
/* All ranks of this node have begun a collective. */
void overlap_begin(struct overlap *overlap, uint64_t now_ns);
/* A collective is over. */
void overlap_end(struct overlap *overlap, uint64_t now_ns);
/* The present half is over. */
void overlap_turn(struct overlap *overlap, uint64_t now_ns);
void overlap_tell(const struct overlap *overlap, uint64_t now_ns, struct overlap_figures *figures);

#endif
