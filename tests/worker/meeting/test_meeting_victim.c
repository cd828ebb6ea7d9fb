/* Another rank's writes into the place never crash this one: neither into what it asks for, nor
 * into what has become of the round. Each case is a process of its own, which a signal would
 * end. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/meeting_victim.h"

#define COUNT_PIECES 500001u
#define COUNT_SUMS 17000u /* more than a slice */

static struct meeting_slot *slot_of(struct victim *victim, uint32_t rank)
{
    return meeting_slot_of(&victim->at, rank, victim->at.met);
}

static void say(struct victim *victim, uint64_t state)
{
    atomic_store(meeting_word_of(&victim->at, victim->at.met), meeting_word(victim->round, state));
}

/* Let the other rank come. Each of two ranks says for itself that it has. */
static void other_comes(struct victim *victim)
{
    slot_of(victim, 1)->ask = slot_of(victim, 0)->ask;
    atomic_store(&slot_of(victim, 1)->word, meeting_word(victim->round, 1));
}

/* --- what the rank asks for --------------------------------------------------------------------
 */

static void write_dtype(struct victim *victim)
{
    slot_of(victim, 0)->ask.dtype = 99;
    atomic_store(&victim->at.place->begun, victim->round << MEETING_STATE_BITS);
    say(victim, victim->size);
}

static void write_kind(struct victim *victim)
{
    slot_of(victim, 0)->ask.kind = 99;
    atomic_store(&victim->at.place->begun, victim->round << MEETING_STATE_BITS);
    say(victim, victim->size);
}

static void write_op(struct victim *victim)
{
    slot_of(victim, 0)->ask.op = 99;
    atomic_store(&victim->at.place->begun, victim->round << MEETING_STATE_BITS);
    say(victim, victim->size);
}

static void write_count(struct victim *victim)
{
    slot_of(victim, 0)->ask.count = UINT64_MAX;
    atomic_store(&victim->at.place->begun, victim->round << MEETING_STATE_BITS | 40000);
    say(victim, victim->size);
}

/* Both ask for it, so that it would pass in pieces. */
static void write_count_of_both(struct victim *victim)
{
    slot_of(victim, 0)->ask.count = UINT64_C(1) << 60;
    other_comes(victim);
}

/* --- what has become of the round --------------------------------------------------------------
 */

/* Something small passes in pieces, after something large. */
static void write_passing(struct victim *victim)
{
    atomic_store(&victim->at.place->passing, victim->round);
    atomic_store(&victim->at.place->turned, UINT32_MAX);
    say(victim, victim->size);
}

static void write_sums(struct victim *victim)
{
    atomic_store(&victim->at.place->begun, victim->round << MEETING_STATE_BITS);
    say(victim, victim->size);
}

static void write_pieces_met(struct victim *victim)
{
    write_passing(victim);
    victim_look(victim);
    say(victim, MEETING_STATE_MET);
}

static void write_streams(struct victim *victim)
{
    for (uint32_t i = 0; i < victim->size; i++) {
        atomic_store(&victim->at.place->streams[i].put, UINT64_MAX);
        atomic_store(&victim->at.place->streams[i].taken, UINT64_MAX - i);
    }
    write_passing(victim);
}

static void write_cores(struct victim *victim)
{
    for (uint32_t i = 0; i < victim->size; i++)
        atomic_store(&victim->at.place->cores[i], UINT32_MAX - i);
    memset(&victim->at.place->counts, 0xff, sizeof(victim->at.place->counts));
}

static const struct {
    const char *what;
    uint32_t size;
    uint32_t kind, dtype, count;
    void (*write)(struct victim *victim);
    enum meeting_verdict verdict;
} cases[] = {
    {"dtype", 3, COLLECTIVE_ALL_REDUCE, DTYPE_I32, 1, write_dtype, MEETING_MET},
    {"kind", 3, COLLECTIVE_ALL_REDUCE, DTYPE_F64, COUNT_SUMS, write_kind, MEETING_MET},
    {"op", 3, COLLECTIVE_ALL_REDUCE, DTYPE_F16, COUNT_SUMS, write_op, MEETING_MET},
    {"count", 3, COLLECTIVE_ALL_REDUCE, DTYPE_I8, 3, write_count, MEETING_OPEN},
    {"dtype, nothing reduced", 3, COLLECTIVE_ALL_GATHER, DTYPE_I32, 1, write_dtype, MEETING_OPEN},
    {"count of two", 2, COLLECTIVE_ALL_REDUCE, DTYPE_F32, 1, write_count_of_both, MEETING_VOID},
    {"small in pieces", 3, COLLECTIVE_ALL_REDUCE, DTYPE_F32, 1, write_passing, MEETING_OPEN},
    {"small in streams", 3, COLLECTIVE_BROADCAST, DTYPE_F32, 1, write_streams, MEETING_OPEN},
    {"sums of a barrier", 3, COLLECTIVE_BARRIER, DTYPE_F32, 0, write_sums, MEETING_OPEN},
    {"sums of a scatter", 3, COLLECTIVE_SCATTER, DTYPE_F32, 3, write_sums, MEETING_OPEN},
    {"pieces met", 3, COLLECTIVE_REDUCE, DTYPE_F32, COUNT_PIECES, write_pieces_met, MEETING_MET},
    {"streams", 3, COLLECTIVE_ALL_TO_ALL, DTYPE_F32, COUNT_PIECES, write_streams, MEETING_MET},
    {"cores", 2, COLLECTIVE_ALL_REDUCE, DTYPE_F32, 1, write_cores, MEETING_VOID},
};
#define CASES ((int)(sizeof(cases) / sizeof(cases[0])))

/* A large one is given up first, of which something may be left over. */
static void leave_something(struct victim *victim)
{
    struct meeting_ask ask = {
        .kind = COLLECTIVE_REDUCE, .dtype = DTYPE_F32, .op = REDUCE_SUM, .count = COUNT_PIECES};
    for (uint32_t kind = COLLECTIVE_REDUCE; kind <= COLLECTIVE_BROADCAST; kind++) {
        ask.kind = kind;
        victim_come(victim, &ask);
        write_passing(victim);
        victim_look(victim);
        say(victim, MEETING_STATE_VOID);
        ck_assert_int_eq(victim_look(victim), MEETING_VOID);
    }
}

START_TEST(test_nothing_crashes)
{
    struct victim victim;
    victim_sit(&victim, cases[_i].size);
    if (cases[_i].size > 2)
        leave_something(&victim);
    victim_come(&victim, &(struct meeting_ask){.kind = cases[_i].kind,
                                               .dtype = cases[_i].dtype,
                                               .count = cases[_i].count});
    ck_assert_uint_eq(victim.at.line, 1);
    cases[_i].write(&victim);
    ck_assert_msg(victim_settle(&victim) == cases[_i].verdict, "%s", cases[_i].what);
    victim_leave(&victim);
}
END_TEST

/* Nobody but this rank can say that it has come: a round that it has not come to is void. */
START_TEST(test_met_without_it)
{
    static const uint64_t states[] = {3, MEETING_STATE_MET, MEETING_STATE_MET - 1, 1};
    struct meeting_ask ask = {.kind = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_I32, .count = 1};
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        struct victim victim;
        victim_sit(&victim, 3);
        victim.round = 1;
        say(&victim, MEETING_STATE_VOID);
        victim.round = 0;
        victim_come(&victim, &ask);
        ck_assert_uint_eq(victim.at.line, 0);
        say(&victim, states[i]);
        ck_assert_int_eq(victim_look(&victim), MEETING_VOID);
        say(&victim, states[i]);
        ck_assert_int_eq(meeting_void(&victim.at, victim.round), MEETING_VOID);
        victim_come(&victim, &ask);
        ck_assert_uint_eq(victim.at.line, 1);
        victim_leave(&victim);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("meeting_victim");
    TCase *tests = tcase_create("meeting_victim");
    tcase_add_loop_test(tests, test_nothing_crashes, 0, CASES);
    tcase_add_test(tests, test_met_without_it);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
