#include "worker/meeting/meeting.h"

#include <fenv.h>
#include <string.h>

/* A round in one word: its number, and how many have arrived. */
#define ARRIVED_BITS 16u
#define ARRIVED_MASK ((UINT64_C(1) << ARRIVED_BITS) - 1)
#define ARRIVED_VOID ARRIVED_MASK

/* What one rank writes. */
struct meeting_part {
    _Alignas(64) struct meeting_ask ask;
    _Alignas(64) uint8_t data[2][MEETING_DATA_BYTES];
};

struct meeting_place {
    _Atomic uint32_t version;
    _Atomic uint32_t present;               /* ranks that use the place */
    _Alignas(64) _Atomic uint64_t round;    /* the latest that a rank has come to */
    _Alignas(64) _Atomic uint64_t met;      /* the latest that has met */
    _Alignas(64) _Atomic uint32_t gate;     /* verdicts so far */
    _Alignas(64) _Atomic uint32_t sleepers; /* who is about to sleep, or sleeps */
    _Alignas(64) uint8_t result[MEETING_DATA_BYTES];
    struct meeting_part parts[];
};

_Static_assert(MEETING_RANKS_MAX < ARRIVED_VOID, "all can arrive");
_Static_assert(MEETING_RANKS_MAX <= REDUCE_MAX_INPUTS, "one pass reduces all");

uint64_t meeting_bytes(uint32_t size)
{
    return sizeof(struct meeting_place) + size * sizeof(struct meeting_part);
}

bool meeting_init(struct meeting *meeting, void *memory, uint64_t bytes, uint32_t rank,
                  uint32_t size)
{
    struct meeting_place *place = memory;
    uint32_t none = 0;
    if (size > MEETING_RANKS_MAX || bytes < meeting_bytes(size))
        return false;
    if (!atomic_compare_exchange_strong(&place->version, &none, MEETING_VERSION) &&
        none != MEETING_VERSION)
        return false;
    atomic_fetch_add(&place->present, 1);
    *meeting = (struct meeting){
        .place = place, .rank = rank, .size = size, .kernels = reduce_select(reduce_isa_best())};
    return true;
}

bool meeting_complete(const struct meeting *meeting)
{
    return atomic_load_explicit(&meeting->place->present, memory_order_relaxed) == meeting->size;
}

static uint64_t ask_bytes(const struct meeting_ask *ask)
{
    return ask->kind == COLLECTIVE_BARRIER ? 0 : ask->count * dtype_bytes(ask->dtype);
}

bool meeting_fits(const struct meeting_ask *ask, uint32_t size)
{
    bool kind = ask->kind == COLLECTIVE_ALL_REDUCE || ask->kind == COLLECTIVE_REDUCE ||
                ask->kind == COLLECTIVE_BROADCAST || ask->kind == COLLECTIVE_BARRIER;
    return kind && size > 1 && size <= MEETING_RANKS_MAX && ask->count <= MEETING_DATA_BYTES &&
           ask_bytes(ask) <= MEETING_DATA_BYTES;
}

static uint8_t *data_of(const struct meeting *meeting, uint32_t rank)
{
    return meeting->place->parts[rank].data[meeting->met % 2];
}

/* --- the last to come ---------------------------------------------------------------------- */

static bool asks_agree(const struct meeting *meeting)
{
    const struct meeting_part *parts = meeting->place->parts;
    for (uint32_t i = 1; i < meeting->size; i++) {
        if (memcmp(&parts[i].ask, &parts[0].ask, sizeof(parts[0].ask)) != 0)
            return false;
    }
    return true;
}

/* The caller may round as it likes, or flush subnormals; the daemon does not. */
static void reduce(const struct meeting *meeting, const struct meeting_ask *ask)
{
    const void *in[MEETING_RANKS_MAX];
    void *out[1] = {meeting->place->result};
    fenv_t callers;
    for (uint32_t i = 0; i < meeting->size; i++)
        in[i] = data_of(meeting, i);
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    reduce_run(meeting->kernels, &(struct reduction){.dtype = (enum dtype)ask->dtype,
                                                     .op = (enum reduce_op)ask->op,
                                                     .divisor = meeting->size,
                                                     .inputs = meeting->size,
                                                     .outputs = 1,
                                                     .count = ask->count,
                                                     .in = in,
                                                     .out = out});
    fesetenv(&callers);
}

static enum meeting_verdict conclude(struct meeting *meeting, uint64_t round,
                                     const struct meeting_ask *ask)
{
    struct meeting_place *place = meeting->place;
    bool agree = asks_agree(meeting);
    if (agree && collective_has_op(ask->kind))
        reduce(meeting, ask);
    if (agree)
        atomic_store(&place->met, round);
    else
        atomic_store(&place->round, round << ARRIVED_BITS | ARRIVED_VOID);
    atomic_fetch_add(&place->gate, 1);
    return agree ? MEETING_MET : MEETING_VOID;
}

/* --- coming and going ---------------------------------------------------------------------- */

/* Change the round's word from what it was, unless the round is over: void, or left for a later
 * one. `arrives`: one more is there; else the round becomes void. Returns how many are there, or
 * ARRIVED_VOID. `all`: so many cannot become void. */
static uint64_t advance(struct meeting_place *place, uint64_t round, bool arrives, uint64_t all)
{
    uint64_t word = atomic_load(&place->round), wanted;
    do {
        uint64_t number = word >> ARRIVED_BITS, arrived = word & ARRIVED_MASK;
        if (number > round || (number == round && arrived == ARRIVED_VOID))
            return ARRIVED_VOID;
        if (number < round)
            arrived = 0;
        if (!arrives && arrived >= all)
            return arrived;
        wanted = round << ARRIVED_BITS | (arrives ? arrived + 1 : ARRIVED_VOID);
    } while (!atomic_compare_exchange_weak(&place->round, &word, wanted));
    if (!arrives)
        atomic_fetch_add(&place->gate, 1);
    return wanted & ARRIVED_MASK;
}

enum meeting_verdict meeting_arrive(struct meeting *meeting, uint64_t round,
                                    const struct meeting_ask *ask, const void *data)
{
    struct meeting_place *place = meeting->place;
    uint64_t word = atomic_load_explicit(&place->round, memory_order_relaxed);
    if (word == (round << ARRIVED_BITS | ARRIVED_VOID) || word >> ARRIVED_BITS > round)
        return MEETING_VOID;
    place->parts[meeting->rank].ask = *ask;
    if (data)
        memcpy(data_of(meeting, meeting->rank), data, ask_bytes(ask));
    uint64_t arrived = advance(place, round, true, meeting->size);
    if (arrived == ARRIVED_VOID)
        return MEETING_VOID;
    return arrived < meeting->size ? MEETING_OPEN : conclude(meeting, round, ask);
}

enum meeting_verdict meeting_look(const struct meeting *meeting, uint64_t round)
{
    struct meeting_place *place = meeting->place;
    /* In this order: the word changes to a later round only when `met` has been written. */
    uint64_t word = atomic_load(&place->round);
    if (atomic_load(&place->met) == round)
        return MEETING_MET;
    return word >> ARRIVED_BITS == round && (word & ARRIVED_MASK) != ARRIVED_VOID ? MEETING_OPEN
                                                                                  : MEETING_VOID;
}

enum meeting_verdict meeting_void(struct meeting *meeting, uint64_t round)
{
    uint64_t arrived = advance(meeting->place, round, false, meeting->size);
    return arrived == ARRIVED_VOID ? meeting_look(meeting, round) : MEETING_OPEN;
}

void meeting_take(struct meeting *meeting, const struct meeting_ask *ask, void *recv)
{
    const uint8_t *result =
        collective_has_op(ask->kind) ? meeting->place->result : data_of(meeting, ask->root);
    if (recv && ask_bytes(ask) > 0)
        memcpy(recv, result, ask_bytes(ask));
    meeting->met++;
}

/* --- sleeping ------------------------------------------------------------------------------ */

_Atomic uint32_t *meeting_gate(const struct meeting *meeting)
{
    return &meeting->place->gate;
}

void meeting_sleep(const struct meeting *meeting, bool begins)
{
    if (begins)
        atomic_fetch_add(&meeting->place->sleepers, 1);
    else
        atomic_fetch_sub(&meeting->place->sleepers, 1);
}

bool meeting_sleepers(const struct meeting *meeting)
{
    return atomic_load(&meeting->place->sleepers) > 0;
}
