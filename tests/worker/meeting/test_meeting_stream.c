/* Streams through the meeting place, by one thread that plays all ranks in an order that a seed
 * draws. At every step somebody can go on, and who cannot names one that can. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/meeting_table.h"

#define COUNT 400003u /* of a part; no multiple of anything that is cut */
#define SEEDS 20

static const uint32_t kinds[] = {COLLECTIVE_BROADCAST, COLLECTIVE_ALL_GATHER, COLLECTIVE_GATHER,
                                 COLLECTIVE_SCATTER, COLLECTIVE_ALL_TO_ALL};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

struct play {
    struct table table;
    uint32_t size;
    struct meeting_ask ask;
    bool own; /* ranks have their own part through the place, too */
    uint64_t seed;
    int32_t *sends[TABLE_RANKS], *recvs[TABLE_RANKS];
    const void *send[TABLE_RANKS][TABLE_RANKS];
    void *recv[TABLE_RANKS][TABLE_RANKS];
};

static uint32_t draw(struct play *play, uint32_t below)
{
    play->seed = play->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(play->seed >> 33) % below;
}

/* Return an element of what a rank sends to another, or to all. */
static int32_t value_of(uint32_t from, uint32_t part, uint32_t index)
{
    return (int32_t)(from * 100003 + part * 1009 + index);
}

static bool sends(const struct play *play, uint32_t rank)
{
    bool one = play->ask.kind == COLLECTIVE_BROADCAST || play->ask.kind == COLLECTIVE_SCATTER;
    return !one || play->ask.root == rank;
}

/* Whether it has part `part` from the place. */
static bool receives(const struct play *play, uint32_t rank, uint32_t part)
{
    uint32_t from = meeting_receives_parts(play->ask.kind) ? part : play->ask.root;
    return (play->own || from != rank) &&
           (play->ask.kind != COLLECTIVE_GATHER || play->ask.root == rank);
}

/* Rank's buffers, and that it comes to the round. */
static enum meeting_verdict come(struct play *play, uint32_t rank, uint64_t round)
{
    size_t bytes = (size_t)play->size * COUNT * sizeof(int32_t);
    uint32_t out = meeting_sends_parts(play->ask.kind) ? play->size : 1;
    uint32_t in = meeting_receives_parts(play->ask.kind) ? play->size : 1;
    play->sends[rank] = malloc(bytes);
    play->recvs[rank] = calloc(1, bytes);
    ck_assert(play->sends[rank] && play->recvs[rank]);
    for (uint32_t part = 0; part < out; part++) {
        int32_t *to = play->sends[rank] + part * COUNT;
        for (uint32_t i = 0; i < COUNT; i++)
            to[i] = value_of(rank, part, i);
        bool own = out > 1 && part == rank;
        play->send[rank][part] = sends(play, rank) && (play->own || !own) ? to : NULL;
    }
    for (uint32_t part = 0; part < in; part++)
        play->recv[rank][part] =
            receives(play, rank, part) ? play->recvs[rank] + part * COUNT : NULL;
    return meeting_arrive(&play->table.at[rank], round, &play->ask, play->send[rank]);
}

static void set(struct play *play, uint32_t size, uint32_t kind, uint64_t seed)
{
    *play = (struct play){.size = size, .seed = seed, .own = seed % 4 < 2};
    play->ask = (struct meeting_ask){.kind = kind, .dtype = DTYPE_I32, .count = COUNT};
    if (collective_has_root(kind))
        play->ask.root = draw(play, size);
    ck_assert(meeting_in_pieces(&play->ask, size));
    table_set_of(&play->table, size);
    for (uint32_t rank = 0; rank < size; rank++)
        ck_assert_int_eq(come(play, rank, 1), rank + 1 < size ? MEETING_OPEN : MEETING_TURN);
}

static enum meeting_verdict look(const struct play *play, uint32_t rank)
{
    return meeting_look(&play->table.at[rank], 1);
}

static enum meeting_verdict turn(struct play *play, uint32_t rank)
{
    return meeting_turn(&play->table.at[rank], 1, &play->ask, play->send[rank], play->recv[rank]);
}

/* All have met; what each has is right. */
static void end(struct play *play)
{
    unsigned wrong = 0;
    for (uint32_t rank = 0; rank < play->size; rank++) {
        uint32_t in = meeting_receives_parts(play->ask.kind) ? play->size : 1;
        ck_assert_int_eq(look(play, rank), MEETING_MET);
        for (uint32_t part = 0; part < in; part++) {
            if (!receives(play, rank, part))
                continue;
            uint32_t from = in > 1 ? part : play->ask.root;
            uint32_t mine = meeting_sends_parts(play->ask.kind) ? rank : 0;
            for (uint32_t i = 0; i < COUNT; i++)
                wrong += play->recvs[rank][part * COUNT + i] != value_of(from, mine, i);
        }
        meeting_take(&play->table.at[rank], &play->ask, play->recv[rank]);
        free(play->sends[rank]);
        free(play->recvs[rank]);
    }
    ck_assert_uint_eq(wrong, 0);
    free(play->table.memory);
}

/* How many ranks can go on; the others name one of them. */
static uint32_t able(const struct play *play)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < play->size; rank++) {
        uint32_t missing = rank;
        if (look(play, rank) == MEETING_TURN) {
            count++;
            ck_assert(!meeting_waits_for(&play->table.at[rank], 1, &missing));
        } else {
            ck_assert_int_eq(look(play, rank), MEETING_OPEN);
            ck_assert(meeting_waits_for(&play->table.at[rank], 1, &missing));
            ck_assert_int_eq(look(play, missing), MEETING_TURN);
        }
    }
    return count;
}

/* Every kind, by 2 and by 3 ranks, in many orders. */
START_TEST(test_any_order)
{
    struct play play;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        enum meeting_verdict verdict = MEETING_OPEN;
        set(&play, 2 + seed % (TABLE_RANKS - 1), kinds[_i], seed);
        ck_assert_int_eq(meeting_void(&play.table.at[0], 1), MEETING_OPEN); /* too late */
        while (verdict != MEETING_MET) {
            ck_assert_uint_ge(able(&play), 1);
            uint32_t rank = draw(&play, play.size);
            verdict = MEETING_OPEN;
            if (look(&play, rank) == MEETING_TURN) {
                verdict = turn(&play, rank);
                ck_assert(verdict == MEETING_TURN || verdict == MEETING_MET);
            }
        }
        end(&play);
    }
}
END_TEST

/* All but one go on as far as they can; then all name it. */
static void all_but(struct play *play, uint32_t slow)
{
    uint32_t missing, able = 1;
    while (able > 0) {
        able = 0;
        for (uint32_t rank = 0; rank < play->size; rank++) {
            if (rank == slow || look(play, rank) != MEETING_TURN)
                continue;
            ck_assert_int_ne(turn(play, rank), MEETING_MET);
            able++;
        }
    }
    for (uint32_t rank = 0; rank < play->size; rank++) {
        if (rank == slow)
            continue;
        ck_assert(meeting_waits_for(&play->table.at[rank], 1, &missing));
        ck_assert_uint_eq(missing, slow);
    }
}

static void go_to_the_end(struct play *play)
{
    for (uint32_t rank = 0; look(play, 0) != MEETING_MET; rank = (rank + 1) % play->size) {
        if (look(play, rank) == MEETING_TURN)
            turn(play, rank);
    }
    end(play);
}

/* A slow rank stops the root when its ring is full, and nobody else before. A piece has 64 KiB. */
START_TEST(test_slow_rank)
{
    enum { RING = 8 * 65536 / sizeof(int32_t) };
    struct play play;
    set(&play, 3, COLLECTIVE_BROADCAST, 1);
    uint32_t root = play.ask.root, fast = (root + 1) % 3, slow = (root + 2) % 3;
    all_but(&play, slow);
    ck_assert_int_eq(play.recvs[fast][RING - 1], value_of(root, 0, RING - 1));
    ck_assert_int_eq(play.recvs[fast][RING], 0);
    meeting_say_core(&play.table.at[root], 1);
    meeting_say_core(&play.table.at[slow], 2);
    ck_assert(!meeting_needs_core(&play.table.at[fast], 1, 1)); /* the root could not use it */
    ck_assert(meeting_needs_core(&play.table.at[fast], 1, 2));
    ck_assert_int_eq(turn(&play, slow), MEETING_TURN);
    ck_assert_int_eq(look(&play, root), MEETING_TURN);
    ck_assert_int_eq(look(&play, fast), MEETING_OPEN); /* it has all that there is */
    go_to_the_end(&play);
}
END_TEST

/* Where all send nobody takes a piece that one has not put. */
START_TEST(test_one_that_stopped)
{
    const uint32_t kind = _i == 0 ? COLLECTIVE_ALL_GATHER : COLLECTIVE_ALL_TO_ALL;
    struct play play;
    set(&play, 3, kind, 2);
    all_but(&play, 2);
    ck_assert_int_eq(play.recvs[0][COUNT], 0); /* of rank 1, which has put it */
    ck_assert_int_eq(play.recvs[1][1], 0);
    ck_assert_int_eq(turn(&play, 2), MEETING_TURN);
    go_to_the_end(&play);
}
END_TEST

/* Fill what a rank sends as a part to rank `to`, or to all. */
static void fill_part(uint8_t *part, uint32_t from, uint32_t to, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        part[i] = (uint8_t)(from * 7 + to * 11 + i % 251);
}

/* Any number of ranks: their rings lie in their parts, the shortest of them of two blocks. The
 * first and the last look at what they have. */
START_TEST(test_many_ranks)
{
    static struct meeting at[MEETING_RANKS_MAX];
    static const void *send[MEETING_RANKS_MAX][MEETING_RANKS_MAX];
    static void *recv[MEETING_RANKS_MAX][MEETING_RANKS_MAX];
    const uint32_t sizes[] = {5, 33, 63, 64};
    uint32_t size = sizes[_i / 2], wrong = 0;
    bool gathers = _i % 2 == 0;
    uint32_t parts = gathers ? 1 : size;
    const struct meeting_ask ask = {.kind = gathers ? COLLECTIVE_ALL_GATHER : COLLECTIVE_ALL_TO_ALL,
                                    .dtype = DTYPE_U8,
                                    .count = meeting_data_bytes(size) / parts + 3};
    uint64_t bytes = meeting_bytes(size), count = ask.count;
    uint8_t *memory = aligned_alloc(64, (bytes + 63) / 64 * 64), *wanted = malloc(count);
    uint8_t *sent = malloc(size * parts * count), *got = malloc(2 * size * count);
    ck_assert(memory && sent && got && wanted && meeting_in_pieces(&ask, size));
    memset(memory, 0, bytes);
    for (uint32_t rank = 0; rank < size; rank++) {
        ck_assert(meeting_init(&at[rank], memory, bytes, rank, size));
        for (uint32_t i = 0; i < size; i++) {
            uint8_t *part = sent + (rank * parts + i % parts) * count;
            if (i < parts)
                fill_part(part, rank, i, count);
            send[rank][i] = part;
            recv[rank][i] =
                rank % (size - 1) == 0 ? got + (rank / (size - 1) * size + i) * count : NULL;
        }
    }
    for (uint32_t rank = 0; rank < size; rank++)
        meeting_arrive(&at[rank], 1, &ask, send[rank]);
    for (uint32_t rank = 0; meeting_look(&at[0], 1) != MEETING_MET; rank = (rank + 1) % size) {
        if (meeting_look(&at[rank], 1) == MEETING_TURN)
            meeting_turn(&at[rank], 1, &ask, send[rank], recv[rank]);
    }
    for (uint32_t from = 0; from < size; from++) {
        for (uint32_t last = 0; last < 2; last++) {
            fill_part(wanted, from, gathers ? 0 : last * (size - 1), count);
            wrong += memcmp(got + (last * size + from) * count, wanted, count) != 0;
        }
    }
    ck_assert_uint_eq(wrong, 0);
    free(got);
    free(sent);
    free(wanted);
    free(memory);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("meeting stream");
    TCase *core = tcase_create("core");
    tcase_set_timeout(core, 60);
    tcase_add_loop_test(core, test_any_order, 0, KINDS);
    tcase_add_test(core, test_slow_rank);
    tcase_add_loop_test(core, test_one_that_stopped, 0, 2);
    tcase_add_loop_test(core, test_many_ranks, 0, 8);
    suite_add_tcase(suite, core);
    return suite_main(suite);
}
