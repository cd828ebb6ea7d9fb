#include "worker/request/parts.h"

#include "tests/lib/suite.h"

#include <stdlib.h>
#include <string.h>

#define RANKS_MAX 5
#define PART_MAX 16 /* elements */
#define CANARY (-1)

static const enum collective_kind kinds[] = {COLLECTIVE_ALL_GATHER, COLLECTIVE_REDUCE_SCATTER,
                                             COLLECTIVE_GATHER, COLLECTIVE_SCATTER,
                                             COLLECTIVE_ALL_TO_ALL};
#define KINDS 5

/* --- a collective carried out by hand ------------------------------------------------------ */

/* One rank's memory: a part for every peer, apart from each other or side by side. */
struct member {
    int32_t send[RANKS_MAX * PART_MAX], recv[RANKS_MAX * PART_MAX];
    const void *send_list[RANKS_MAX], *recv_list[RANKS_MAX];
    size_t send_counts[RANKS_MAX], recv_counts[RANKS_MAX];
    struct parts_ask ask;
    struct request_ask blocks[2 * RANKS_MAX];
    uint32_t block_count;
};

struct setting {
    enum collective_kind kind;
    uint32_t size, root;
    bool uneven, in_place;
    struct member members[RANKS_MAX];
};

static bool sends_one(enum collective_kind kind)
{
    return kind == COLLECTIVE_ALL_GATHER || kind == COLLECTIVE_GATHER;
}

static bool receives_one(enum collective_kind kind)
{
    return kind == COLLECTIVE_REDUCE_SCATTER || kind == COLLECTIVE_SCATTER;
}

/* Elements from one rank to another; uneven ones may be 0, and are not the same both ways. */
static size_t part_count(const struct setting *setting, uint32_t from, uint32_t to)
{
    if (!setting->uneven)
        return 3;
    if (setting->kind == COLLECTIVE_ALL_TO_ALL)
        return (from * 3 + to * 5) % 7;
    return (sends_one(setting->kind) ? from : to) * 2;
}

/* Return an element that rank `from` sends to rank `to`. In a reduction every rank sends one; else
 * only `from` does. */
static int32_t value(uint32_t from, uint32_t to, size_t element)
{
    return (int32_t)(1000 * (from + 1) + 100 * to + element);
}

static struct parts_side one_side(const int32_t *base, size_t count)
{
    return (struct parts_side){.base = base, .count = count};
}

static struct parts_side side(const struct setting *setting, const int32_t *base,
                              const void *const *list, const size_t *counts)
{
    if (!setting->uneven)
        return (struct parts_side){.base = base, .count = 3};
    return (struct parts_side){.buffers = list, .counts = counts};
}

/* The root's side of a gather or scatter is not looked at elsewhere. */
static void forget_unused(struct parts_ask *ask)
{
    static const struct parts_side none;
    if (ask->kind == COLLECTIVE_GATHER && ask->rank != ask->root)
        ask->recv = none;
    if (ask->kind == COLLECTIVE_SCATTER && ask->rank != ask->root)
        ask->send = none;
}

static void place(struct setting *setting, uint32_t rank)
{
    struct member *member = &setting->members[rank];
    for (uint32_t i = 0; i < setting->size; i++) {
        bool one = sends_one(setting->kind);
        size_t step = setting->uneven ? PART_MAX : 3;
        /* Lists are not in the order of memory. */
        size_t at = (setting->uneven ? setting->size - 1 - i : i) * step;
        member->send_list[i] = member->send + at;
        member->recv_list[i] = member->recv + at;
        member->send_counts[i] = part_count(setting, rank, i);
        member->recv_counts[i] = part_count(setting, i, rank);
        int32_t *to = one ? member->send : member->send + at;
        for (size_t k = 0; k < member->send_counts[i]; k++)
            to[k] = value(rank, one ? 0 : i, k);
    }
    memset(member->recv, CANARY, sizeof(member->recv));
    struct parts_ask *ask = &member->ask;
    *ask = (struct parts_ask){.kind = setting->kind,
                              .dtype = DTYPE_I32,
                              .root = setting->root,
                              .rank = rank,
                              .size = setting->size,
                              .priority = 7};
    ask->send = sends_one(setting->kind)
                    ? one_side(member->send, member->send_counts[rank])
                    : side(setting, member->send, member->send_list, member->send_counts);
    ask->recv = receives_one(setting->kind)
                    ? one_side(member->recv, member->recv_counts[rank])
                    : side(setting, member->recv, member->recv_list, member->recv_counts);
    forget_unused(ask);
}

/* The one buffer becomes the rank's own part of the other side, where it has one. */
static void place_in_place(const struct setting *setting, struct member *member)
{
    uint32_t rank = member->ask.rank;
    if (receives_one(setting->kind) && (member->ask.send.base || member->ask.send.buffers))
        member->ask.recv.base = member->send_list[rank];
    if (sends_one(setting->kind) && (member->ask.recv.base || member->ask.recv.buffers)) {
        int32_t *own = (int32_t *)(uintptr_t)member->recv_list[rank];
        memcpy(own, member->send, member->send_counts[rank] * sizeof(*own));
        member->ask.send.base = own;
    }
}

static void prepare(struct setting *setting)
{
    struct error error;
    for (uint32_t rank = 0; rank < setting->size; rank++) {
        struct member *member = &setting->members[rank];
        place(setting, rank);
        if (setting->in_place)
            place_in_place(setting, member);
        ck_assert_msg(parts_check(&member->ask, &error) == 0, "%s", error.text);
        member->block_count = parts_block_count(&member->ask);
        ck_assert_uint_le(member->block_count, 2 * RANKS_MAX);
        parts_blocks(&member->ask, member->blocks);
    }
}

static const struct request_ask *find_block(const struct member *member, uint32_t block)
{
    for (uint32_t i = 0; i < member->block_count; i++)
        if (member->blocks[i].block == block)
            return &member->blocks[i];
    return NULL;
}

/* Do what the daemons do: move every block from the rank that sends it to each that wants it. */
static void run_block(struct setting *setting, const struct request_ask *ask)
{
    int32_t data[PART_MAX] = {0};
    for (uint32_t rank = 0; rank < setting->size; rank++) {
        const struct request_ask *other = find_block(&setting->members[rank], ask->block);
        ck_assert_int_eq(other != NULL, route_takes_part(&ask->route, rank));
        if (!other)
            continue;
        ck_assert_uint_eq(other->count, ask->count); /* both ends mean the same part */
        ck_assert_uint_eq(other->priority, 7);
        for (uint64_t k = 0; route_sends(&ask->route, rank) && k < ask->count; k++)
            data[k] += ((const int32_t *)other->send)[k];
    }
    for (uint32_t rank = 0; rank < setting->size; rank++) {
        const struct request_ask *other = find_block(&setting->members[rank], ask->block);
        if (!route_receives(&ask->route, rank))
            continue;
        ck_assert_ptr_nonnull(other);
        if (other->count > 0)
            memcpy(other->recv, data, other->count * sizeof(*data));
    }
}

static void run(struct setting *setting)
{
    for (uint32_t rank = 0; rank < setting->size; rank++) {
        const struct member *member = &setting->members[rank];
        for (uint32_t i = 0; i < member->block_count; i++) {
            const struct request_ask *ask = &member->blocks[i];
            if (i > 0)
                ck_assert_uint_gt(ask->block, member->blocks[i - 1].block);
            uint32_t first = 0; /* of the ranks that take part: so that each block runs once */
            while (!route_takes_part(&ask->route, first))
                first++;
            if (first == rank)
                run_block(setting, ask);
        }
        struct parts_copy copy = parts_own_copy(&member->ask);
        if (copy.bytes > 0)
            memcpy(copy.to, copy.from, copy.bytes);
        if (setting->in_place && setting->kind != COLLECTIVE_ALL_TO_ALL)
            ck_assert_uint_eq(member->ask.rank == setting->root ||
                                      setting->kind == COLLECTIVE_ALL_GATHER
                                  ? copy.bytes
                                  : 0,
                              0);
    }
}

static int32_t expected(const struct setting *setting, uint32_t from, uint32_t to, size_t element)
{
    if (setting->kind != COLLECTIVE_REDUCE_SCATTER)
        return value(from, sends_one(setting->kind) ? 0 : to, element);
    int32_t sum = 0;
    for (uint32_t rank = 0; rank < setting->size; rank++)
        sum += value(rank, to, element);
    return sum;
}

static void check(const struct setting *setting)
{
    for (uint32_t rank = 0; rank < setting->size; rank++) {
        const struct member *member = &setting->members[rank];
        if (setting->kind == COLLECTIVE_GATHER && rank != setting->root) {
            for (size_t k = 0; k < RANKS_MAX * PART_MAX; k++)
                ck_assert_int_eq(member->recv[k], CANARY);
            continue;
        }
        bool one = receives_one(setting->kind);
        for (uint32_t i = 0; i < (one ? 1 : setting->size); i++) {
            uint32_t from = setting->kind == COLLECTIVE_SCATTER ? setting->root : i;
            const int32_t *got = one ? member->ask.recv.base : member->recv_list[i];
            size_t count = part_count(setting, from, rank);
            for (size_t k = 0; k < count; k++)
                ck_assert_msg(got[k] == expected(setting, from, rank, k),
                              "%s of %u, root %u, %s %s: rank %u from %u, element %zu: %d",
                              collective_name(setting->kind), setting->size, setting->root,
                              setting->uneven ? "uneven" : "even",
                              setting->in_place ? "in place" : "", rank, from, k, got[k]);
            if (setting->uneven && !setting->in_place)
                ck_assert_int_eq(got[count], CANARY);
        }
    }
}

START_TEST(test_every_kind_moves_every_part)
{
    static struct setting setting;
    for (uint32_t size = 1; size <= RANKS_MAX; size++)
        for (uint32_t root = 0; root < size; root++)
            for (unsigned flags = 0; flags < 4; flags++) {
                setting.kind = kinds[_i];
                setting.size = size;
                setting.root = root;
                setting.uneven = flags & 1;
                setting.in_place = flags & 2;
                prepare(&setting);
                run(&setting);
                check(&setting);
            }
}
END_TEST

START_TEST(test_the_whole)
{
    static struct setting setting;
    for (unsigned uneven = 0; uneven < 2; uneven++) {
        setting.kind = kinds[_i];
        setting.size = 4;
        setting.root = 2;
        setting.uneven = uneven == 1;
        prepare(&setting);
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct request_ask whole = parts_whole(&setting.members[rank].ask);
            /* All ranks must say the same of what all of them know. */
            bool known =
                kinds[_i] == COLLECTIVE_ALL_GATHER || kinds[_i] == COLLECTIVE_REDUCE_SCATTER;
            ck_assert_uint_eq(whole.count, known ? 12 : 0); /* 0 + 2 + 4 + 6, or 4 * 3 */
            ck_assert_int_eq(whole.kind, kinds[_i]);
            ck_assert_int_eq(whole.dtype, DTYPE_I32);
            ck_assert_uint_eq(whole.root, 2);
            ck_assert_uint_eq(whole.block, 0);
            ck_assert_uint_eq(whole.priority, 7);
            ck_assert(!whole.send && !whole.recv);
        }
    }
}
END_TEST

/* --- checks --------------------------------------------------------------------------------- */

static int32_t left[64], right[64];

/* Good for every kind: rank 1 of 3, which is the root, with parts of 4. */
static struct parts_ask good_ask(enum collective_kind kind)
{
    return (struct parts_ask){.kind = kind,
                              .dtype = DTYPE_I32,
                              .root = 1,
                              .rank = 1,
                              .size = 3,
                              .send = {.base = left, .count = 4},
                              .recv = {.base = right, .count = 4}};
}

static void refused(const struct parts_ask *ask, const char *words)
{
    struct error error = {0};
    ck_assert_msg(parts_check(ask, &error) == ERR_INVALID, "%s: \"%s\" expected",
                  collective_name(ask->kind), words);
    ck_assert_msg(
        strncmp(error.text, collective_name(ask->kind), strlen(collective_name(ask->kind))) == 0 &&
            strstr(error.text, words) != NULL,
        "\"%s\" lacks \"%s\"", error.text, words);
}

static void allowed(const struct parts_ask *ask)
{
    struct error error = {0};
    ck_assert_msg(parts_check(ask, &error) == 0, "%s", error.text);
}

START_TEST(test_types_roots_and_sizes)
{
    struct parts_ask ask = good_ask(kinds[_i]);
    allowed(&ask);
    ask.dtype = DTYPE_COUNT;
    refused(&ask, "12 is no element type (0 to 11)");
    ask = good_ask(kinds[_i]);
    ask.size = ROUTE_MAX_RANKS + 1;
    refused(&ask, "a group of 65536 ranks is too large (at most 65535)");
    ask = good_ask(kinds[_i]);
    ask.send.count = ask.recv.count = SIZE_MAX / 4;
    refused(&ask, "elements are too many");
    ask.send.count = ask.recv.count = (1ull << 60) / 3 + 1; /* all together */
    refused(&ask, "elements are too many");
    ask = good_ask(kinds[_i]);
    ask.root = 3;
    if (collective_has_root(kinds[_i]))
        refused(&ask, "root 3 is not a rank of the group (0 to 2)");
    else
        allowed(&ask);
    ask = good_ask(kinds[_i]);
    ask.op = REDUCE_OP_COUNT;
    if (kinds[_i] != COLLECTIVE_REDUCE_SCATTER) {
        allowed(&ask); /* has none */
        return;
    }
    refused(&ask, "11 is no operation (0 to 10)");
    ask.op = REDUCE_BXOR;
    allowed(&ask);
    ask.dtype = DTYPE_F16;
    refused(&ask, "bxor is not for half, only for integers");
}
END_TEST

START_TEST(test_buffers_that_are_missing)
{
    struct parts_ask ask = good_ask(kinds[_i]);
    ask.send.base = NULL;
    refused(&ask, sends_one(kinds[_i]) ? "the buffer to send is NULL"
                                       : "the buffer to send to rank 0 is NULL");
    ask.send.count = ask.recv.count = 0; /* nothing of nothing */
    allowed(&ask);
    ask = good_ask(kinds[_i]);
    ask.recv.base = NULL;
    refused(&ask, receives_one(kinds[_i]) ? "the buffer to receive into is NULL"
                                          : "the buffer to receive into from rank 0 is NULL");
    /* Elsewhere than on the root one side is not looked at. */
    ask.rank = 0;
    if (kinds[_i] == COLLECTIVE_GATHER)
        allowed(&ask);
    ask = good_ask(kinds[_i]);
    ask.rank = 2;
    ask.send = (struct parts_side){0};
    if (kinds[_i] == COLLECTIVE_SCATTER)
        allowed(&ask);
}
END_TEST

/* In lists, the one that is missing is named, and only if there is something to put there. */
START_TEST(test_lists_with_gaps)
{
    const void *list[3] = {left, NULL, left + 8};
    const size_t counts[3] = {4, 0, 4}, more[3] = {4, 1, 4};
    struct parts_ask ask = good_ask(COLLECTIVE_ALL_TO_ALL);
    const void *other[3] = {right, right + 4, right + 8};
    ask.send = (struct parts_side){.buffers = list, .counts = counts};
    ask.recv = (struct parts_side){.buffers = other, .counts = counts};
    allowed(&ask);
    ask.send.counts = more;
    refused(&ask, "the buffer to send to rank 1 is NULL");
    ask.send = (struct parts_side){.buffers = other, .counts = counts};
    ask.recv = (struct parts_side){.buffers = list, .counts = more};
    refused(&ask, "the buffer to receive into from rank 1 is NULL");
    ask.recv = (struct parts_side){.counts = counts};
    refused(&ask, "the list of buffers is NULL");
}
END_TEST

START_TEST(test_own_part_of_two_sizes)
{
    const void *sent[3] = {left, left + 8, left + 16}, *got[3] = {right, right + 8, right + 16};
    const size_t a[3] = {4, 5, 4}, b[3] = {4, 6, 4};
    struct parts_ask ask = good_ask(COLLECTIVE_ALL_TO_ALL);
    ask.send = (struct parts_side){.buffers = sent, .counts = a};
    ask.recv = (struct parts_side){.buffers = got, .counts = b};
    refused(&ask, "rank 1 sends 5 elements to itself and receives 6");
    ask.recv.counts = a;
    allowed(&ask);
    for (int i = 0; i < KINDS; i++) {
        ask = good_ask(kinds[i]);
        ask.recv.count = 3;
        refused(&ask, "rank 1 sends 4 elements to itself and receives 3");
    }
    ask = good_ask(COLLECTIVE_GATHER); /* not the root: nothing to compare with */
    ask.root = 0;
    ask.recv.count = 3;
    allowed(&ask);
}
END_TEST

/* Lists that are nowhere, on a side that a rank other than the root does not have. */
START_TEST(test_unused_sides_are_not_looked_at)
{
    struct request_ask block;
    const struct parts_side nowhere = {.buffers = (const void *const *)(uintptr_t)8,
                                       .counts = (const size_t *)(uintptr_t)8};
    struct parts_ask ask = good_ask(COLLECTIVE_GATHER);
    ask.root = 0;
    ask.recv = nowhere;
    allowed(&ask);
    ck_assert_uint_eq(parts_block_count(&ask), 1);
    parts_blocks(&ask, &block);
    ck_assert_ptr_eq(block.send, left);
    ck_assert_uint_eq(block.count, 4);
    ck_assert_uint_eq(parts_whole(&ask).count, 0);
    ck_assert_uint_eq(parts_own_copy(&ask).bytes, 0);

    ask = good_ask(COLLECTIVE_SCATTER);
    ask.root = 0;
    ask.send = nowhere;
    allowed(&ask);
    ck_assert_uint_eq(parts_block_count(&ask), 1);
    parts_blocks(&ask, &block);
    ck_assert_ptr_eq(block.recv, right);
    ck_assert_uint_eq(block.count, 4);
    ck_assert_uint_eq(parts_own_copy(&ask).bytes, 0);
}
END_TEST

START_TEST(test_overlap)
{
    for (int i = 0; i < KINDS; i++) {
        bool one_in = sends_one(kinds[i]), one_out = receives_one(kinds[i]);
        struct parts_ask ask = good_ask(kinds[i]);
        /* Own part in place; then somebody else's; then half of each. */
        ask.send.base = one_in ? left + 4 : left;
        ask.recv.base = one_out ? left + 4 : left;
        if (one_in || one_out)
            allowed(&ask);
        else
            refused(&ask, "the buffers overlap");
        if (one_in)
            ask.send.base = left + 8;
        else
            ask.recv.base = left + 8;
        refused(&ask, "the buffers overlap");
        if (one_in)
            ask.send.base = left + 3;
        else
            ask.recv.base = left + 3;
        refused(&ask, "the buffers overlap");
        /* Behind the end, and before the beginning, is apart. */
        ask = good_ask(kinds[i]);
        ask.send.base = left + 12;
        ask.recv.base = one_out ? left + 8 : left;
        allowed(&ask);
        ask.send.base = left;
        ask.recv.base = one_in ? left + 4 : left + 12;
        allowed(&ask);
    }
    /* The root alone has both sides. */
    struct parts_ask ask = good_ask(COLLECTIVE_GATHER);
    ask.recv.base = left;
    refused(&ask, "the buffers overlap");
    ask.rank = 0;
    allowed(&ask);
}
END_TEST

START_TEST(test_one_rank_alone)
{
    for (int i = 0; i < KINDS; i++) {
        struct parts_ask ask = good_ask(kinds[i]);
        ask.size = 1;
        ask.rank = ask.root = 0;
        allowed(&ask);
        bool through_daemon =
            kinds[i] == COLLECTIVE_ALL_GATHER || kinds[i] == COLLECTIVE_REDUCE_SCATTER;
        ck_assert_uint_eq(parts_block_count(&ask), through_daemon ? 1 : 0);
        struct parts_copy copy = parts_own_copy(&ask);
        ck_assert_uint_eq(copy.bytes, kinds[i] == COLLECTIVE_REDUCE_SCATTER ? 0 : 16);
        if (copy.bytes) {
            ck_assert_ptr_eq(copy.to, right);
            ck_assert_ptr_eq(copy.from, left);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parts");
    TCase *moves = tcase_create("moves"); /* _i: the kind */
    tcase_add_loop_test(moves, test_every_kind_moves_every_part, 0, KINDS);
    tcase_add_loop_test(moves, test_the_whole, 0, KINDS);
    tcase_add_test(moves, test_one_rank_alone);
    suite_add_tcase(suite, moves);
    TCase *checks = tcase_create("checks");
    tcase_add_loop_test(checks, test_types_roots_and_sizes, 0, KINDS);
    tcase_add_loop_test(checks, test_buffers_that_are_missing, 0, KINDS);
    tcase_add_test(checks, test_lists_with_gaps);
    tcase_add_test(checks, test_own_part_of_two_sizes);
    tcase_add_test(checks, test_unused_sides_are_not_looked_at);
    tcase_add_test(checks, test_overlap);
    suite_add_tcase(suite, checks);
    return suite_main(suite);
}
