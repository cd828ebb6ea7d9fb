/* A rank at a meeting place whose other ranks write what the input says, between any two looks of
 * its own. It comes to rounds of every kind, and touches nothing but the place and its buffers. */
#include "tests/fuzz/fuzz.h"
#include "tests/lib/worker/meeting_victim.h"

#define STEP_BYTES 8u
#define STEPS_MOST 64u

static const uint64_t counts[] = {0, 1, 33, 2000, 17000, 200001};

/* Any ask that request_check lets through. */
static struct meeting_ask ask_of(const uint8_t *at, uint32_t size)
{
    struct meeting_ask ask = {.kind = at[1] % COLLECTIVE_SEND, .dtype = at[2] % DTYPE_COUNT};
    ask.op = collective_has_op(ask.kind) ? at[3] % REDUCE_OP_COUNT : REDUCE_SUM;
    if (!reduce_op_allows(ask.op, ask.dtype))
        ask.op = REDUCE_SUM;
    ask.root = collective_has_root(ask.kind) ? at[4] % size : 0;
    ask.count = counts[at[5] % (sizeof(counts) / sizeof(counts[0]))];
    if (ask.kind == COLLECTIVE_BARRIER)
        ask.count = 0;
    return ask;
}

/* A number that others might write: of this round or of another, and how it stands; or any. */
static uint64_t value_of(const struct victim *victim, const uint8_t *at)
{
    static const uint64_t states[] = {0,   1, 2, 3, MEETING_STATE_MET, MEETING_STATE_VOID,
                                      500, 0, 0, 0};
    uint64_t value;
    memcpy(&value, at, sizeof(value));
    switch (at[1] % 4) {
    case 0:
        return value;
    case 1:
        return victim->round;
    default:
        return meeting_word(victim->round + at[6] % 2,
                            states[at[7] % (sizeof(states) / sizeof(states[0]))]);
    }
}

/* Any word of what is not data: of the place, or of a slot of this round. */
static void write_word(struct victim *victim, const uint8_t *at)
{
    uint64_t value = value_of(victim, at);
    uint8_t *to = (uint8_t *)victim->at.place;
    uint64_t bytes = offsetof(struct meeting_place, results);
    if (at[2] % 2) {
        to = (uint8_t *)meeting_slot_of(&victim->at, at[3] % victim->size, victim->at.met);
        bytes = offsetof(struct meeting_slot, few);
    }
    memcpy(to + (at[4] | at[5] << 8) * sizeof(value) % bytes, &value, sizeof(value));
}

static void state_word(struct victim *victim, const uint8_t *at)
{
    atomic_store(meeting_word_of(&victim->at, victim->at.met), value_of(victim, at));
}

/* Let the other ranks come as honest ones do, as far as their asks go. */
static void others_come(struct victim *victim)
{
    for (uint32_t i = 1; i < victim->size; i++) {
        meeting_slot_of(&victim->at, i, victim->at.met)->ask = victim->ask;
        atomic_store(&meeting_slot_of(&victim->at, i, victim->at.met)->word,
                     meeting_word(victim->round, 1));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct victim victim;
    bool inside = false;
    if (size < STEP_BYTES)
        return 0;
    victim_sit(&victim, 2 + data[0] % 3);
    for (size_t at = 1; at + STEP_BYTES <= size && at < STEPS_MOST * STEP_BYTES; at += STEP_BYTES) {
        enum meeting_verdict verdict = MEETING_OPEN;
        switch (data[at] % 8) {
        case 0:
            verdict = inside ? victim_settle(&victim) : MEETING_VOID;
            if (verdict == MEETING_OPEN) /* others say that they still reduce */
                break;
            struct meeting_ask ask = ask_of(data + at, victim.size);
            victim_come(&victim, &ask);
            verdict = MEETING_OPEN;
            inside = true;
            break;
        case 1:
            others_come(&victim);
            break;
        case 2:
        case 3:
            verdict = inside ? victim_look(&victim) : MEETING_OPEN;
            break;
        case 4:
            state_word(&victim, data + at);
            break;
        default:
            write_word(&victim, data + at);
        }
        inside = inside && verdict != MEETING_MET && verdict != MEETING_VOID;
    }
    if (inside)
        victim_settle(&victim);
    victim_leave(&victim);
    return 0;
}
