/* A rank at a meeting place whose other ranks write what they like: it comes, looks, and does what
 * it is told, as the library's driver does. */
#ifndef TESTS_LIB_WORKER_MEETING_VICTIM_H
#define TESTS_LIB_WORKER_MEETING_VICTIM_H

#include "worker/meeting/meeting_private.h"

struct victim {
    struct meeting at;
    void *memory;
    uint32_t size;
    struct meeting_ask ask; /* of the round that it is in */
    uint64_t round;
    uint8_t *buffers[2 * MEETING_RANKS_MAX]; /* sent, then received; each as long as it may be */
    const void *send[MEETING_RANKS_MAX];
    void *recv[MEETING_RANKS_MAX];
};

/* Rank 0 of `size`, at a place of its own. To be ended by victim_leave. */
void victim_sit(struct victim *victim, uint32_t size);
void victim_leave(struct victim *victim);
/* Come to the next round with that, which is checked as request_check does. */
void victim_come(struct victim *victim, const struct meeting_ask *ask);
/* Look once, and do what is to be done. MEETING_MET, MEETING_VOID: the round is over. */
enum meeting_verdict victim_look(struct victim *victim);
/* Look as often as a patient rank would, then give up. Return what became of the round. */
enum meeting_verdict victim_settle(struct victim *victim);

#endif
