#include "tests/lib/worker/meeting_victim.h"

#include <stdlib.h>
#include <string.h>

#include "common/format/route.h"
#include "tests/fuzz/fuzz.h"

#define LOOKS 64

void victim_sit(struct victim *victim, uint32_t size)
{
    uint64_t bytes = meeting_bytes(size);
    *victim = (struct victim){.size = size, .memory = aligned_alloc(64, bytes)};
    FUZZ_REQUIRE(victim->memory);
    memset(victim->memory, 0, bytes);
    FUZZ_REQUIRE(meeting_init(&victim->at, victim->memory, bytes, 0, size));
}

static void free_buffers(struct victim *victim)
{
    for (size_t i = 0; i < sizeof(victim->buffers) / sizeof(victim->buffers[0]); i++) {
        free(victim->buffers[i]);
        victim->buffers[i] = NULL;
    }
}

void victim_leave(struct victim *victim)
{
    free_buffers(victim);
    free(victim->memory);
}

/* Exactly as long as what is sent and received, so that a sanitizer sees what is touched beyond. */
static void make_buffers(struct victim *victim)
{
    const struct meeting_ask *ask = &victim->ask;
    uint64_t bytes = meeting_part_bytes(ask);
    bool root = ask->root == 0, one_sends, one_receives;
    one_sends = ask->kind == COLLECTIVE_BROADCAST || ask->kind == COLLECTIVE_SCATTER;
    one_receives = ask->kind == COLLECTIVE_REDUCE || ask->kind == COLLECTIVE_GATHER;
    free_buffers(victim);
    for (uint32_t i = 0; i < victim->size; i++) {
        bool sends = (root || !one_sends) && (i == 0 || meeting_sends_parts(ask->kind));
        bool receives = (root || !one_receives) && (i == 0 || meeting_receives_parts(ask->kind));
        uint8_t **pair = &victim->buffers[(size_t)2 * i];
        pair[0] = sends && bytes > 0 ? calloc(1, bytes) : NULL;
        pair[1] = receives && bytes > 0 ? calloc(1, bytes) : NULL;
        victim->send[i] = pair[0];
        victim->recv[i] = pair[1];
    }
}

void victim_come(struct victim *victim, const struct meeting_ask *ask)
{
    victim->ask = *ask;
    victim->round++;
    make_buffers(victim);
    if (meeting_may_come(&victim->at, ask))
        meeting_arrive(&victim->at, victim->round, ask, victim->send);
}

/* End the round, which is over. */
static enum meeting_verdict end(struct victim *victim, enum meeting_verdict verdict)
{
    if (verdict == MEETING_MET) {
        FUZZ_REQUIRE(victim->at.line == 1);
        meeting_take(&victim->at, &victim->ask, victim->recv);
    }
    if (verdict == MEETING_VOID)
        meeting_leave(&victim->at, victim->round);
    FUZZ_REQUIRE(victim->at.line <= 1);
    return verdict;
}

enum meeting_verdict victim_look(struct victim *victim)
{
    enum meeting_verdict verdict = meeting_look(&victim->at, victim->round);
    if (verdict == MEETING_SUMS)
        verdict = meeting_help(&victim->at, victim->round, &victim->ask);
    if (verdict == MEETING_TURN)
        verdict =
            meeting_turn(&victim->at, victim->round, &victim->ask, victim->send, victim->recv);
    uint32_t rank;
    (void)meeting_waits_for(&victim->at, victim->round, &rank);
    (void)meeting_needs_core(&victim->at, victim->round, 1);
    return end(victim, verdict);
}

enum meeting_verdict victim_settle(struct victim *victim)
{
    enum meeting_verdict verdict = MEETING_OPEN;
    for (int i = 0; i < LOOKS && verdict != MEETING_MET && verdict != MEETING_VOID; i++)
        verdict = victim_look(victim);
    if (verdict != MEETING_MET && verdict != MEETING_VOID)
        verdict = end(victim, meeting_void(&victim->at, victim->round));
    return verdict;
}
