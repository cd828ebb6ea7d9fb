#include "worker/meeting/meeting.h"

#include <fenv.h>
#include <string.h>

#include "common/format/place.h"
#include "common/format/route.h"
#include "common/memory/copy.h"

/* A round in one word: its number, and how many have arrived. */
#define ARRIVED_BITS 16u
#define ARRIVED_MASK ((UINT64_C(1) << ARRIVED_BITS) - 1)
#define ARRIVED_VOID ARRIVED_MASK
/* What is summed at once for a caller whose memory is not aligned. */
#define UNALIGNED_BYTES 4096u

/* More than this the ranks reduce together, in slices of so much. */
#define SLICE_BYTES 32768u
/* What more than two ranks bring to an all_reduce is no more: beyond, the daemon's pieces, which
 * stay in a core's cache from one end to the other, take less time. */
#define SUMMED_BYTES (UINT64_C(2) << 20)
/* All ranks' data of one of the two halves is no more, unless there are few. */
#define HALF_BYTES (UINT64_C(8) << 20)

/* Before a rank's data. */
struct meeting_part {
    _Alignas(64) struct meeting_ask ask;
};

struct meeting_place {
    _Atomic uint32_t version;
    _Atomic uint32_t present; /* ranks that use the place */
    _Alignas(64) struct place_counts counts;
    _Alignas(64) _Atomic uint64_t round;    /* the latest that a rank has come to */
    _Alignas(64) _Atomic uint64_t met;      /* the latest that has met */
    _Alignas(64) _Atomic uint32_t gate;     /* verdicts so far, and calls of ranks to themselves */
    _Alignas(64) _Atomic uint32_t sleepers; /* who is about to sleep, or sleeps */
    /* The round of the sums, and how many slices ranks have begun; and ended, of the same round. */
    _Alignas(64) _Atomic uint64_t begun;
    _Alignas(64) _Atomic uint32_t ended;
    /* Of each rank the core that it last ran on, and 1; 0: not known. Written when it changes. */
    _Alignas(64) _Atomic uint32_t cores[MEETING_RANKS_MAX];
    _Alignas(64) uint8_t result[MEETING_DATA_BYTES];
    uint8_t parts[]; /* of each rank: struct meeting_part, and twice its data */
};

_Static_assert(offsetof(struct meeting_place, counts) == PLACE_COUNTS_OFFSET,
               "the daemon finds the counts");
_Static_assert(MEETING_RANKS_MAX < ARRIVED_VOID, "all can arrive");
_Static_assert(MEETING_RANKS_MAX <= REDUCE_MAX_INPUTS, "one pass reduces all");

uint64_t meeting_data_bytes(uint32_t size)
{
    uint64_t most = HALF_BYTES / size / 64 * 64;
    return most < MEETING_DATA_BYTES ? most : MEETING_DATA_BYTES;
}

static uint64_t part_stride(uint32_t size)
{
    return sizeof(struct meeting_part) + 2 * meeting_data_bytes(size);
}

uint64_t meeting_bytes(uint32_t size)
{
    return sizeof(struct meeting_place) + size * part_stride(size);
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

void meeting_say_core(const struct meeting *meeting, uint32_t core)
{
    _Atomic uint32_t *said = &meeting->place->cores[meeting->rank];
    if (atomic_load_explicit(said, memory_order_relaxed) != core + 1)
        atomic_store_explicit(said, core + 1, memory_order_relaxed);
}

bool meeting_shares_core(const struct meeting *meeting, uint32_t core)
{
    for (uint32_t i = 0; i < meeting->size; i++) {
        if (i != meeting->rank &&
            atomic_load_explicit(&meeting->place->cores[i], memory_order_relaxed) == core + 1)
            return true;
    }
    return false;
}

bool meeting_sends_parts(uint32_t kind)
{
    return kind == COLLECTIVE_REDUCE_SCATTER || kind == COLLECTIVE_SCATTER ||
           kind == COLLECTIVE_ALL_TO_ALL;
}

bool meeting_receives_parts(uint32_t kind)
{
    return kind == COLLECTIVE_ALL_GATHER || kind == COLLECTIVE_GATHER ||
           kind == COLLECTIVE_ALL_TO_ALL;
}

static uint64_t part_bytes(const struct meeting_ask *ask)
{
    return ask->kind == COLLECTIVE_BARRIER ? 0 : ask->count * dtype_bytes(ask->dtype);
}

bool meeting_fits(const struct meeting_ask *ask, uint32_t size)
{
    uint64_t parts = meeting_sends_parts(ask->kind) ? size : 1;
    uint64_t most_bytes = meeting_data_bytes(size);
    if (ask->kind == COLLECTIVE_ALL_REDUCE && size > 2 && most_bytes > SUMMED_BYTES / size)
        most_bytes = SUMMED_BYTES / size;
    return ask->kind < COLLECTIVE_KIND_COUNT && ask->kind != COLLECTIVE_SEND && size > 1 &&
           size <= MEETING_RANKS_MAX && ask->count <= MEETING_DATA_BYTES &&
           parts * part_bytes(ask) <= most_bytes;
}

static struct meeting_part *part_of(const struct meeting *meeting, uint32_t rank)
{
    return (void *)(meeting->place->parts + rank * part_stride(meeting->size));
}

static uint8_t *data_of(const struct meeting *meeting, uint32_t rank)
{
    return (uint8_t *)(part_of(meeting, rank) + 1) +
           meeting->met % 2 * meeting_data_bytes(meeting->size);
}

/* --- the last to come ---------------------------------------------------------------------- */

static bool asks_agree(const struct meeting *meeting)
{
    const struct meeting_ask *first = &part_of(meeting, 0)->ask;
    for (uint32_t i = 1; i < meeting->size; i++) {
        if (memcmp(&part_of(meeting, i)->ask, first, sizeof(*first)) != 0)
            return false;
    }
    return true;
}

/* Of two ranks each sums, and has the result where it wants it. More would sum too often. */
static bool last_reduces(const struct meeting *meeting, const struct meeting_ask *ask)
{
    return ask->kind == COLLECTIVE_ALL_REDUCE && meeting->size > 2;
}

/* The caller may round as it likes, or flush subnormals; the daemon does not. */
#if defined(__x86_64__)
/* Of what <fenv.h> knows kernels use this alone; the rest takes as long as a small collective. */
#define MXCSR_DEFAULT 0x1f80u

typedef unsigned arithmetic;

static arithmetic arithmetic_begin(void)
{
    arithmetic callers = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(MXCSR_DEFAULT);
    return callers;
}

static void arithmetic_end(const arithmetic *callers)
{
    __builtin_ia32_ldmxcsr(*callers);
}
#else
typedef fenv_t arithmetic;

static arithmetic arithmetic_begin(void)
{
    arithmetic callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    return callers;
}

static void arithmetic_end(const arithmetic *callers)
{
    fesetenv(callers);
}
#endif

/* What all have sent `first` elements from the beginning on. */
static void reduce(const struct meeting *meeting, const struct meeting_ask *ask, uint64_t first,
                   uint64_t count, void *to)
{
    const void *in[MEETING_RANKS_MAX];
    void *out[1] = {to};
    for (uint32_t i = 0; i < meeting->size; i++)
        in[i] = data_of(meeting, i) + first * dtype_bytes(ask->dtype);
    arithmetic callers = arithmetic_begin();
    reduce_run(meeting->kernels, &(struct reduction){.dtype = (enum dtype)ask->dtype,
                                                     .op = (enum reduce_op)ask->op,
                                                     .divisor = meeting->size,
                                                     .inputs = meeting->size,
                                                     .outputs = 1,
                                                     .count = count,
                                                     .in = in,
                                                     .out = out});
    arithmetic_end(&callers);
}

/* The same for memory of the caller's, which need not be aligned to the elements. */
static void reduce_to(const struct meeting *meeting, const struct meeting_ask *ask, uint64_t first,
                      uint8_t *to)
{
    uint64_t element_bytes = dtype_bytes(ask->dtype);
    if ((uintptr_t)to % element_bytes == 0) {
        reduce(meeting, ask, first, ask->count, to);
        return;
    }
    _Alignas(64) uint8_t piece[UNALIGNED_BYTES];
    uint64_t at_once = sizeof(piece) / element_bytes;
    for (uint64_t done = 0; done < ask->count; done += at_once) {
        uint64_t count = ask->count - done < at_once ? ask->count - done : at_once;
        reduce(meeting, ask, first + done, count, piece);
        memcpy(to + done * element_bytes, piece, count * element_bytes);
    }
}

/* What the ranks would have submitted: each the whole, or its blocks. */
static uint64_t submitted_bytes(const struct meeting *meeting, const struct meeting_ask *ask)
{
    enum collective_kind kind = (enum collective_kind)ask->kind;
    uint64_t parts = route_in_blocks(kind) ? 0 : meeting->size;
    for (uint32_t i = 0; i < meeting->size; i++)
        parts += route_block_count(kind, ask->root, i, meeting->size);
    return parts * part_bytes(ask);
}

/* Only who ends the round writes the counts; its word orders one such after another. */
static void count(struct meeting *meeting, const struct meeting_ask *ask)
{
    struct place_counts *counts = &meeting->place->counts;
    uint64_t collectives = atomic_load_explicit(&counts->collectives, memory_order_relaxed);
    uint64_t bytes = atomic_load_explicit(&counts->bytes, memory_order_relaxed);
    atomic_store_explicit(&counts->collectives, collectives + 1, memory_order_relaxed);
    atomic_store_explicit(&counts->bytes, bytes + submitted_bytes(meeting, ask),
                          memory_order_relaxed);
}

/* --- slices -------------------------------------------------------------------------------- */

static uint64_t slice_count(const struct meeting_ask *ask)
{
    return SLICE_BYTES / dtype_bytes(ask->dtype);
}

static uint64_t slices_of(const struct meeting_ask *ask)
{
    return (ask->count + slice_count(ask) - 1) / slice_count(ask);
}

/* A slice that nobody has begun, or `slices`. */
static uint64_t slice_begin(struct meeting_place *place, uint64_t round, uint64_t slices)
{
    uint64_t word = atomic_load(&place->begun);
    do {
        if (word >> ARRIVED_BITS != round || (word & ARRIVED_MASK) >= slices)
            return slices;
    } while (!atomic_compare_exchange_weak(&place->begun, &word, word + 1));
    return word & ARRIVED_MASK;
}

static void meet(struct meeting *meeting, uint64_t round, const struct meeting_ask *ask)
{
    count(meeting, ask);
    atomic_store(&meeting->place->met, round);
    atomic_fetch_add(&meeting->place->gate, 1);
}

enum meeting_verdict meeting_help(struct meeting *meeting, uint64_t round,
                                  const struct meeting_ask *ask)
{
    struct meeting_place *place = meeting->place;
    uint64_t slices = slices_of(ask), at_once = slice_count(ask), slice;
    while ((slice = slice_begin(place, round, slices)) < slices) {
        uint64_t first = slice * at_once, left = ask->count - first;
        reduce(meeting, ask, first, left < at_once ? left : at_once,
               place->result + first * dtype_bytes(ask->dtype));
        if (atomic_fetch_add(&place->ended, 1) + 1 == slices) {
            meet(meeting, round, ask);
            return MEETING_MET;
        }
    }
    return MEETING_OPEN;
}

static enum meeting_verdict conclude(struct meeting *meeting, uint64_t round,
                                     const struct meeting_ask *ask)
{
    struct meeting_place *place = meeting->place;
    bool agree = asks_agree(meeting);
    if (agree && last_reduces(meeting, ask)) {
        if (slices_of(ask) > 1) {
            atomic_store(&place->ended, 0);
            atomic_store(&place->begun, round << ARRIVED_BITS);
            atomic_fetch_add(&place->gate, 1); /* whoever is awake, or is woken now, helps */
            return MEETING_SUMS;
        }
        reduce(meeting, ask, 0, ask->count, place->result);
    }
    if (agree) {
        meet(meeting, round, ask);
        return MEETING_MET;
    }
    atomic_store(&place->round, round << ARRIVED_BITS | ARRIVED_VOID);
    atomic_fetch_add(&place->gate, 1);
    return MEETING_VOID;
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
                                    const struct meeting_ask *ask, const void *const send[])
{
    uint32_t parts = meeting_sends_parts(ask->kind) ? meeting->size : 1;
    uint64_t bytes = part_bytes(ask);
    struct meeting_place *place = meeting->place;
    uint64_t word = atomic_load_explicit(&place->round, memory_order_relaxed);
    if (word == (round << ARRIVED_BITS | ARRIVED_VOID) || word >> ARRIVED_BITS > round)
        return MEETING_VOID;
    part_of(meeting, meeting->rank)->ask = *ask;
    for (uint32_t i = 0; i < parts && bytes > 0; i++) {
        if (send[i])
            memcpy(data_of(meeting, meeting->rank) + i * bytes, send[i], bytes);
    }
    uint64_t arrived = advance(place, round, true, meeting->size);
    if (arrived == ARRIVED_VOID)
        return MEETING_VOID;
    return arrived < meeting->size ? MEETING_OPEN : conclude(meeting, round, ask);
}

/* Of the ask of the round that this rank has arrived at. */
static uint64_t place_slices(const struct meeting *meeting)
{
    return slices_of(&part_of(meeting, meeting->rank)->ask);
}

enum meeting_verdict meeting_look(const struct meeting *meeting, uint64_t round)
{
    struct meeting_place *place = meeting->place;
    /* In this order: the word changes to a later round only when `met` has been written. */
    uint64_t word = atomic_load(&place->round);
    if (atomic_load(&place->met) == round)
        return MEETING_MET;
    uint64_t begun = atomic_load(&place->begun);
    if (begun >> ARRIVED_BITS == round && (begun & ARRIVED_MASK) < place_slices(meeting))
        return MEETING_SUMS;
    return word >> ARRIVED_BITS == round && (word & ARRIVED_MASK) != ARRIVED_VOID ? MEETING_OPEN
                                                                                  : MEETING_VOID;
}

enum meeting_verdict meeting_void(struct meeting *meeting, uint64_t round)
{
    uint64_t arrived = advance(meeting->place, round, false, meeting->size);
    return arrived == ARRIVED_VOID ? meeting_look(meeting, round) : MEETING_OPEN;
}

/* recv[i], of a collective that does not reduce: from whom, and where it lies. */
static const uint8_t *sent_part(const struct meeting *meeting, const struct meeting_ask *ask,
                                uint32_t i)
{
    const uint8_t *data = data_of(meeting, meeting_receives_parts(ask->kind) ? i : ask->root);
    return meeting_sends_parts(ask->kind) ? data + meeting->rank * part_bytes(ask) : data;
}

static void copy_part(void *to, const void *from, uint64_t bytes, bool large)
{
    if (large)
        copy_result(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

void meeting_take(struct meeting *meeting, const struct meeting_ask *ask, void *const recv[])
{
    uint32_t parts = meeting_receives_parts(ask->kind) ? meeting->size : 1;
    uint64_t first = ask->kind == COLLECTIVE_REDUCE_SCATTER ? meeting->rank * ask->count : 0;
    uint64_t bytes = part_bytes(ask);
    bool large = parts * bytes >= COPY_PAST_CACHE_BYTES;
    for (uint32_t i = 0; i < parts && bytes > 0; i++) {
        if (!recv[i])
            continue;
        if (last_reduces(meeting, ask))
            memcpy(recv[i], meeting->place->result, bytes);
        else if (collective_has_op(ask->kind))
            reduce_to(meeting, ask, first, recv[i]);
        else
            copy_part(recv[i], sent_part(meeting, ask, i), bytes, large);
    }
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
