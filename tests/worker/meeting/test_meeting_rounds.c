/* Rounds at the meeting place step by step, by one thread that plays all ranks: of several that are
 * under way, and of large ones, which pass in pieces. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/meeting_table.h"

/* Whoever has come to rounds behind one that is void meets nobody there. */
START_TEST(test_line_is_void)
{
    struct table table;
    int32_t number = 1, got[2] = {0};
    const void *value[] = {&number};
    struct meeting_ask larger = one_number;
    larger.count = MEETING_SLOT_BYTES / sizeof(int32_t) + 1;
    table_set(&table);
    for (uint64_t round = 1; round <= MEETING_LINE; round++) {
        ck_assert(meeting_may_come(&table.at[0], &one_number));
        ck_assert_int_eq(meeting_may_come(&table.at[0], &larger), round == 1);
        ck_assert_int_eq(meeting_arrive(&table.at[0], round, &one_number, value), MEETING_OPEN);
    }
    ck_assert(!meeting_may_come(&table.at[0], &one_number));
    for (uint64_t round = 1; round <= 3; round++)
        meeting_arrive(&table.at[1], round, &one_number, value);
    ck_assert_int_eq(meeting_arrive(&table.at[2], 1, &one_number, value), MEETING_MET);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(meeting_look(&table.at[i], 1), MEETING_MET);
        meeting_take(&table.at[i], &one_number, (void *[]){&got[0]});
        ck_assert_int_eq(got[0], 3);
    }
    /* Rank 2 has round 2 elsewhere. The others give theirs up, and all come to a later one. */
    ck_assert_int_eq(meeting_void(&table.at[2], 2), MEETING_VOID);
    ck_assert_int_eq(meeting_look(&table.at[0], 2), MEETING_VOID);
    ck_assert_int_eq(meeting_look(&table.at[1], 2), MEETING_VOID);
    meeting_leave(&table.at[0], MEETING_LINE);
    ck_assert_int_eq(meeting_arrive(&table.at[2], 3, &one_number, value), MEETING_VOID);
    for (uint32_t i = 0; i < 3; i++) {
        meeting_leave(&table.at[i], 3);
        ck_assert(meeting_may_come(&table.at[i], &larger));
        number = (int32_t)i;
        for (uint64_t round = MEETING_LINE + 1; round <= MEETING_LINE + 2; round++)
            ck_assert_int_eq(meeting_arrive(&table.at[i], round, &one_number, value),
                             i < 2 ? MEETING_OPEN : MEETING_MET);
    }
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(meeting_look(&table.at[i], MEETING_LINE + 1), MEETING_MET);
        meeting_take(&table.at[i], &one_number, (void *[]){&got[0]});
        ck_assert_int_eq(meeting_look(&table.at[i], MEETING_LINE + 2), MEETING_MET);
        meeting_take(&table.at[i], &one_number, (void *[]){&got[1]});
        ck_assert(got[0] == 3 && got[1] == 3);
    }
    free(table.memory);
}
END_TEST

/* Whoever finds, as the last to come, that a round is void comes to none behind it. */
START_TEST(test_asks_differ_in_a_line)
{
    struct table table;
    int32_t number = 1;
    const void *value[] = {&number};
    struct meeting_ask other = one_number;
    other.op = REDUCE_MAX;
    table_set(&table);
    for (uint64_t round = 1; round <= 3; round++) {
        meeting_arrive(&table.at[0], round, &one_number, value);
        meeting_arrive(&table.at[1], round, &one_number, value);
    }
    ck_assert_int_eq(meeting_arrive(&table.at[2], 1, &one_number, value), MEETING_MET);
    ck_assert_int_eq(meeting_arrive(&table.at[2], 2, &other, value), MEETING_VOID);
    ck_assert(!meeting_may_come(&table.at[2], &one_number));
    for (uint32_t i = 0; i < TABLE_RANKS; i++) {
        ck_assert_int_eq(meeting_look(&table.at[i], 1), MEETING_MET);
        meeting_take(&table.at[i], &one_number, (void *[]){NULL});
        ck_assert_int_eq(meeting_look(&table.at[i], 2), MEETING_VOID);
        meeting_leave(&table.at[i], i < 2 ? 3 : 2);
        ck_assert(meeting_may_come(&table.at[i], &one_number));
    }
    /* The others have given up round 3, too. */
    ck_assert_int_eq(meeting_arrive(&table.at[2], 3, &one_number, value), MEETING_VOID);
    free(table.memory);
}
END_TEST

START_TEST(test_what_passes_in_pieces)
{
    struct meeting_ask ask = one_number;
    ask.count = MEETING_AT_ONCE_BYTES / 4;
    ck_assert(!meeting_in_pieces(&ask, 2));
    ask.count++;
    ck_assert(meeting_in_pieces(&ask, 2));
    /* All that a rank sends counts, whether it is one part or many. */
    ask = (struct meeting_ask){
        .kind = COLLECTIVE_ALL_GATHER, .dtype = DTYPE_F32, .count = MEETING_AT_ONCE_BYTES / 4};
    ck_assert(!meeting_in_pieces(&ask, 4));
    ask.kind = COLLECTIVE_REDUCE_SCATTER;
    ck_assert(meeting_in_pieces(&ask, 4));
    ask.count /= 4;
    ck_assert(!meeting_in_pieces(&ask, 4));
    ck_assert(meeting_in_pieces(&ask, 5));
    /* In an all_reduce of more than two ranks what all bring together counts. */
    ask = (struct meeting_ask){
        .kind = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_F32, .count = MEETING_AT_ONCE_BYTES / 4 / 2};
    ck_assert(!meeting_in_pieces(&ask, 8));
    ask.count++;
    ck_assert(meeting_in_pieces(&ask, 8));
    ck_assert(!meeting_in_pieces(&ask, 7));
    ask.kind = COLLECTIVE_REDUCE;
    ck_assert(!meeting_in_pieces(&ask, 8));
    ask = (struct meeting_ask){.kind = COLLECTIVE_ALL_GATHER,
                               .dtype = DTYPE_U8,
                               .count = meeting_data_bytes(MEETING_RANKS_MAX) + 1};
    ck_assert(meeting_in_pieces(&ask, MEETING_RANKS_MAX));
    ck_assert(!meeting_in_pieces(&ask, 2));
    /* A barrier has nothing to pass, whatever its count. */
    ask = (struct meeting_ask){.kind = COLLECTIVE_BARRIER, .count = UINT64_MAX};
    ck_assert(!meeting_in_pieces(&ask, 2));
}
END_TEST

/* A turn is due when all have made the one before; a round that passes cannot be given up, and has
 * met when all have made the last one. In place: shares of later pieces are overwritten only when
 * they have been put. */
START_TEST(test_turns)
{
    enum { SIZE = 3, COUNT_TURNS = 700001 };
    struct table table;
    static int32_t data[SIZE][COUNT_TURNS];
    struct meeting_ask large = one_number;
    unsigned turns = 0, wrong = 0;
    large.count = COUNT_TURNS;
    ck_assert(meeting_in_pieces(&large, SIZE));
    table_set(&table);
    for (uint32_t i = 0; i < SIZE; i++) {
        const void *send[] = {data[i]};
        for (int32_t n = 0; n < COUNT_TURNS; n++)
            data[i][n] = n * (int32_t)(i + 1);
        ck_assert_int_eq(meeting_arrive(&table.at[i], 1, &large, send),
                         i < SIZE - 1 ? MEETING_OPEN : MEETING_TURN);
    }
    ck_assert_int_eq(meeting_void(&table.at[0], 1), MEETING_OPEN); /* too late */
    uint32_t missing;
    while (meeting_look(&table.at[0], 1) == MEETING_TURN) {
        turns++;
        for (uint32_t n = 0; n < SIZE; n++) {
            uint32_t i = (n + turns) % SIZE; /* the last one is another each time */
            const void *send[] = {data[i]};
            void *recv[] = {data[i]};
            ck_assert_int_eq(meeting_look(&table.at[i], 1), MEETING_TURN);
            enum meeting_verdict verdict = meeting_turn(&table.at[i], 1, &large, send, recv);
            ck_assert_int_eq(meeting_waits_for(&table.at[i], 1, &missing), n < SIZE - 1);
            if (n < SIZE - 1) {
                ck_assert_uint_ne(missing, i);
                ck_assert_int_eq(meeting_look(&table.at[missing], 1), MEETING_TURN);
                ck_assert_int_eq(verdict, MEETING_OPEN);
                ck_assert_int_eq(meeting_look(&table.at[i], 1), MEETING_OPEN);
            } else {
                ck_assert(verdict == MEETING_TURN || verdict == MEETING_MET);
            }
        }
    }
    ck_assert_uint_ge(turns, 4);
    for (uint32_t i = 0; i < SIZE; i++) {
        ck_assert_int_eq(meeting_look(&table.at[i], 1), MEETING_MET);
        for (int32_t n = 0; n < COUNT_TURNS; n++)
            wrong += data[i][n] != 6 * n;
        ck_assert_uint_eq(wrong, 0);
        meeting_take(&table.at[i], &large, NULL);
    }
    /* The next round finds the place as it should be. */
    int32_t number = 1, got = 0;
    const void *value[] = {&number};
    void *recv[] = {&got};
    for (uint32_t i = 0; i < SIZE; i++)
        meeting_arrive(&table.at[i], 2, &one_number, value);
    ck_assert_int_eq(meeting_look(&table.at[0], 2), MEETING_MET);
    meeting_take(&table.at[0], &one_number, recv);
    ck_assert_int_eq(got, SIZE);
    free(table.memory);
}
END_TEST

/* A rank's own part of a reduce_scatter is summed from where it lies, also into itself; one that
 * lies between two elements is brought as the others are, and may be overwritten then. All parts
 * may be the same memory. */
START_TEST(test_own_part)
{
    enum { OWN_COUNT = 40, OWN_BYTES = OWN_COUNT * sizeof(int32_t) };
    enum { ALIGNED, UNALIGNED, ONE } how = _i;
    const struct meeting_ask scatter = {.kind = COLLECTIVE_REDUCE_SCATTER,
                                        .dtype = DTYPE_I32,
                                        .op = REDUCE_SUM,
                                        .count = OWN_COUNT};
    const size_t stride = how == ONE ? 0 : OWN_BYTES;
    const int32_t apart = how == ONE ? 0 : 100;
    struct table table;
    _Alignas(4) uint8_t data[TABLE_RANKS][TABLE_RANKS * OWN_BYTES + 4];
    table_set(&table);
    for (uint32_t rank = 0; rank < TABLE_RANKS; rank++) {
        const void *send[TABLE_RANKS];
        for (uint32_t part = 0; part < TABLE_RANKS; part++) {
            uint8_t *to = data[rank] + (how == UNALIGNED) + part * stride;
            for (int32_t n = 0; n < OWN_COUNT; n++) {
                int32_t value = n + apart * (int32_t)part + 1000 * (int32_t)rank;
                memcpy(to + (size_t)n * sizeof(value), &value, sizeof(value));
            }
            send[part] = to;
        }
        meeting_arrive(&table.at[rank], 1, &scatter, send);
        for (uint32_t part = 0; part < TABLE_RANKS; part++) {
            if (how == UNALIGNED || (how == ALIGNED && part != rank))
                memset(data[rank] + (how == UNALIGNED) + part * stride, 0x55, OWN_BYTES);
        }
    }
    for (uint32_t rank = 0; rank < TABLE_RANKS; rank++) {
        uint8_t *to = data[rank] + (how == UNALIGNED) + (how == ONE ? 1 : rank) * OWN_BYTES;
        meeting_take(&table.at[rank], &scatter, (void *[]){to, NULL, NULL});
        for (int32_t n = 0; n < OWN_COUNT; n++) {
            int32_t value;
            memcpy(&value, to + (size_t)n * sizeof(value), sizeof(value));
            ck_assert_int_eq(value, 3 * n + 3 * apart * (int32_t)rank + 3000);
        }
    }
    free(table.memory);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("meeting rounds");
    TCase *core = tcase_create("core");
    tcase_add_test(core, test_line_is_void);
    tcase_add_test(core, test_asks_differ_in_a_line);
    tcase_add_test(core, test_what_passes_in_pieces);
    tcase_add_test(core, test_turns);
    tcase_add_loop_test(core, test_own_part, 0, 3);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
