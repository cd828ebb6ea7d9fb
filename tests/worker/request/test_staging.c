#include "worker/request/staging.h"

#include "tests/lib/suite.h"
#include "worker/request/request.h"

#define FIRST 4096u
#define BYTES 1024u
#define ALL UINT64_MAX

START_TEST(test_shared_slots_first_then_own)
{
    struct staging staging;
    struct staging_slot own;
    ck_assert_int_eq(staging_init(&staging, FIRST, BYTES, 3), 0);
    ck_assert_int_eq(staging_add_own(&staging, &own, 100 * BYTES, BYTES), 0);
    struct staging_slot *taken[3];
    for (int i = 0; i < 3; i++) {
        taken[i] = staging_take(&staging, &own, BYTES, ALL, i % 2);
        ck_assert_ptr_nonnull(taken[i]);
        ck_assert(taken[i]->shared);
        ck_assert_int_eq(taken[i]->state, STAGING_TAKEN);
        for (int j = 0; j < i; j++)
            ck_assert_uint_ne(taken[i]->offset, taken[j]->offset);
    }
    ck_assert_ptr_null(staging_take(&staging, &own, BYTES, ALL, false));
    ck_assert_ptr_eq(staging_take(&staging, &own, BYTES, ALL, true), &own);
    ck_assert_ptr_null(staging_take(&staging, &own, BYTES, ALL, true));
    staging_give_back(&staging, taken[1]);
    ck_assert_ptr_eq(staging_take(&staging, &own, BYTES, ALL, false), taken[1]);
    staging_give_back(&staging, &own);
    ck_assert_ptr_eq(staging_take(&staging, &own, BYTES, ALL, true), &own);
    staging_clear(&staging);
}
END_TEST

/* Nobody else's use keeps a group's oldest from a slot: this makes the library free of deadlock. */
START_TEST(test_every_group_keeps_its_own)
{
    struct staging staging;
    struct staging_slot own[20];
    ck_assert_int_eq(staging_init(&staging, FIRST, BYTES, 2), 0);
    for (unsigned i = 0; i < 20; i++)
        ck_assert_int_eq(staging_add_own(&staging, &own[i], (50 + i) * BYTES, BYTES), 0);
    for (unsigned i = 0; i < 20; i++)
        while (staging_take(&staging, &own[0], BYTES, ALL, false))
            ;
    for (unsigned i = 0; i < 20; i++)
        ck_assert_ptr_eq(staging_take(&staging, &own[i], BYTES, ALL, true), &own[i]);
    staging_clear(&staging);
}
END_TEST

START_TEST(test_without_shared_slots)
{
    struct staging staging;
    struct staging_slot own;
    ck_assert_int_eq(staging_init(&staging, FIRST, BYTES, 0), 0);
    ck_assert_int_eq(staging_add_own(&staging, &own, FIRST, BYTES), 0);
    ck_assert_ptr_null(staging_take(&staging, &own, BYTES, ALL, false));
    ck_assert_ptr_eq(staging_take(&staging, &own, BYTES, ALL, true), &own);
    ck_assert_ptr_eq(staging_find(&staging, FIRST), &own);
    staging_clear(&staging);
}
END_TEST

START_TEST(test_larger_chunks_use_their_own_slot_only)
{
    struct staging staging;
    struct staging_slot own;
    ck_assert_int_eq(staging_init(&staging, FIRST, BYTES, 2), 0);
    ck_assert_int_eq(staging_add_own(&staging, &own, 100 * BYTES, 4 * BYTES), 0);
    ck_assert_ptr_null(staging_take(&staging, &own, 4 * BYTES, ALL, false));
    ck_assert_ptr_eq(staging_take(&staging, &own, 4 * BYTES, ALL, true), &own);
    staging_clear(&staging);
}
END_TEST

START_TEST(test_no_more_held_than_allowed)
{
    struct staging staging;
    struct staging_slot own;
    ck_assert_int_eq(staging_init(&staging, FIRST, BYTES, 8), 0);
    ck_assert_int_eq(staging_add_own(&staging, &own, 100 * BYTES, BYTES), 0);
    /* One always, however little is allowed; then by what is asked for, not by whole slots. */
    struct staging_slot *first = staging_take(&staging, &own, BYTES, BYTES / 2, false);
    ck_assert_ptr_nonnull(first);
    ck_assert_ptr_null(staging_take(&staging, &own, BYTES, 2 * BYTES - 1, false));
    struct staging_slot *second = staging_take(&staging, &own, BYTES / 4, 2 * BYTES, false);
    struct staging_slot *third = staging_take(&staging, &own, BYTES / 4, 2 * BYTES, false);
    ck_assert_ptr_nonnull(second);
    ck_assert_ptr_nonnull(third);
    ck_assert_ptr_null(staging_take(&staging, &own, BYTES, 2 * BYTES, false));
    /* The group's own slot is beside it, and others may be allowed more. */
    ck_assert_ptr_eq(staging_take(&staging, &own, BYTES, 2 * BYTES, true), &own);
    struct staging_slot *fourth = staging_take(&staging, &own, BYTES, ALL, false);
    ck_assert_ptr_nonnull(fourth);
    ck_assert_uint_eq(staging.held_bytes, BYTES + BYTES / 2); /* who has no limit takes nobody's */
    /* Slots that come back do not count any more. */
    staging_give_back(&staging, fourth);
    staging_give_back(&staging, first);
    staging_give_back(&staging, &own);
    ck_assert_uint_eq(staging.held_bytes, BYTES / 2);
    ck_assert_ptr_nonnull(staging_take(&staging, &own, BYTES, 2 * BYTES, false));
    staging_clear(&staging);
}
END_TEST

START_TEST(test_half_for_those_that_go_ahead)
{
    for (uint32_t slots = 1; slots <= 5; slots++) {
        struct staging staging;
        struct staging_slot own, *taken = NULL, *next;
        uint32_t ahead = 0, others = 0;
        ck_assert_int_eq(staging_init(&staging, FIRST, BYTES, slots), 0);
        ck_assert_int_eq(staging_add_own(&staging, &own, 100 * BYTES, BYTES), 0);
        for (; (next = staging_take(&staging, &own, BYTES, ALL, STAGING_AHEAD)); ahead++)
            taken = next;
        ck_assert_uint_eq(ahead, (slots + 1) / 2);
        /* A slot that comes back is free again for those that go ahead, as long as others have no
         * more. */
        staging_give_back(&staging, taken);
        ck_assert_ptr_nonnull(staging_take(&staging, &own, BYTES, ALL, STAGING_AHEAD));
        for (; staging_take(&staging, &own, BYTES, ALL, STAGING_IN_TURN); others++)
            ;
        ck_assert_uint_eq(ahead + others, slots);
        staging_restart(&staging);
        ck_assert_uint_eq(staging.ahead_count, 0);
        /* Slots that others have do not count. */
        for (others = 0; others < slots / 2; others++)
            ck_assert_ptr_nonnull(staging_take(&staging, &own, BYTES, ALL, STAGING_IN_TURN));
        for (ahead = 0; staging_take(&staging, &own, BYTES, ALL, STAGING_AHEAD); ahead++)
            ;
        ck_assert_uint_eq(ahead + others, slots);
        staging_clear(&staging);
    }
}
END_TEST

START_TEST(test_find)
{
    struct staging staging;
    struct staging_slot own[2];
    ck_assert_int_eq(staging_init(&staging, FIRST, BYTES, 3), 0);
    ck_assert_int_eq(staging_add_own(&staging, &own[0], FIRST + 3 * BYTES, BYTES), 0);
    ck_assert_int_eq(staging_add_own(&staging, &own[1], 64, BYTES), 0);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_ptr_eq(staging_find(&staging, FIRST + i * BYTES), &staging.slots[i]);
    ck_assert_ptr_eq(staging_find(&staging, FIRST + 3 * BYTES), &own[0]);
    ck_assert_ptr_eq(staging_find(&staging, 64), &own[1]);
    const uint64_t nowhere[] = {0, 63, FIRST - 1, FIRST + 1, FIRST + BYTES + 64, UINT64_MAX};
    for (size_t i = 0; i < sizeof(nowhere) / sizeof(nowhere[0]); i++)
        ck_assert_ptr_null(staging_find(&staging, nowhere[i]));
    staging_remove_own(&staging, &own[0]);
    ck_assert_ptr_null(staging_find(&staging, FIRST + 3 * BYTES));
    ck_assert_ptr_eq(staging_find(&staging, 64), &own[1]);
    staging_clear(&staging);
}
END_TEST

START_TEST(test_abandon)
{
    struct staging staging;
    struct staging_slot own;
    struct request failed, other;
    ck_assert_int_eq(staging_init(&staging, FIRST, BYTES, 3), 0);
    ck_assert_int_eq(staging_add_own(&staging, &own, 100 * BYTES, BYTES), 0);
    struct staging_slot *slots[4];
    const enum staging_state states[4] = {STAGING_TAKEN, STAGING_GIVEN, STAGING_GIVEN,
                                          STAGING_BACK};
    for (int i = 0; i < 4; i++) {
        slots[i] = staging_take(&staging, &own, BYTES, 3 * BYTES, true);
        slots[i]->request = i == 2 ? &other : &failed;
        slots[i]->state = states[i];
    }
    staging_abandon(&staging, &failed);
    ck_assert_int_eq(slots[0]->state, STAGING_FREE);
    ck_assert_int_eq(slots[1]->state, STAGING_GIVEN); /* the daemon may write to it yet */
    ck_assert_ptr_null(slots[1]->request);
    ck_assert_ptr_eq(slots[2]->request, &other);
    ck_assert_int_eq(own.state, STAGING_FREE);
    ck_assert_uint_eq(staging.held_bytes, 2 * BYTES);
    ck_assert_ptr_eq(staging_take(&staging, &own, BYTES, ALL, false), slots[0]);
    ck_assert_ptr_null(staging_take(&staging, &own, BYTES, ALL, false));
    staging_give_back(&staging, slots[1]);
    ck_assert_uint_eq(staging.held_bytes, BYTES);
    ck_assert_ptr_eq(staging_take(&staging, &own, BYTES, ALL, false), slots[1]);
    staging_clear(&staging);
}
END_TEST

static struct staging_slot *give(struct staging *staging, struct staging_slot *own, uint64_t number)
{
    struct staging_slot *slot = staging_take(staging, own, BYTES, ALL, true);
    ck_assert_ptr_eq(slot, own);
    slot->number = number;
    slot->chunk = (uint32_t)number + 1;
    slot->state = STAGING_GIVEN;
    return slot;
}

/* Groups come and go; what the daemon has of those that are gone comes back in any order. */
/* The daemon has let go of the arena: slots and orphans that it had are free again. */
START_TEST(test_restart)
{
    struct staging staging;
    struct staging_slot own, gone;
    uint64_t offset;
    ck_assert_int_eq(staging_init(&staging, FIRST, BYTES, 1), 0);
    ck_assert_int_eq(staging_add_own(&staging, &own, 100 * BYTES, BYTES), 0);
    ck_assert_int_eq(staging_add_own(&staging, &gone, 101 * BYTES, BYTES), 0);
    struct staging_slot *shared = staging_take(&staging, &gone, 512, BYTES, true);
    shared->state = STAGING_GIVEN;
    ck_assert_ptr_eq(staging_take(&staging, &own, BYTES, ALL, true), &own);
    own.state = STAGING_GIVEN;
    ck_assert_ptr_eq(staging_take(&staging, &gone, BYTES, ALL, true), &gone);
    gone.state = STAGING_GIVEN;
    staging_remove_own(&staging, &gone);
    ck_assert(!staging_next_free(&staging, &offset));
    staging_restart(&staging);
    ck_assert_uint_eq(staging.held_bytes, 0);
    ck_assert(staging_next_free(&staging, &offset));
    ck_assert_uint_eq(offset, 101 * BYTES);
    ck_assert_ptr_eq(staging_take(&staging, &own, BYTES, ALL, true), shared);
    ck_assert_ptr_eq(staging_take(&staging, &own, BYTES, ALL, true), &own);
    staging_clear(&staging);
}
END_TEST

START_TEST(test_orphans)
{
    enum { ROUNDS = 40, STAY = 8 };
    struct staging staging;
    struct staging_slot own[ROUNDS];
    uint64_t offset = 0;
    ck_assert_int_eq(staging_init(&staging, FIRST, BYTES, 0), 0);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        ck_assert_int_eq(staging_add_own(&staging, &own[i], (50 + i) * BYTES, BYTES), 0);
        if (i % 2)
            give(&staging, &own[i], i);
        if (i < STAY)
            continue;
        staging_remove_own(&staging, &own[i - STAY]);
        own[i - STAY].offset = 1; /* it is not looked at any more */
        ck_assert(!staging_next_free(&staging, &offset));
        if ((i - STAY) % 2)
            ck_assert_ptr_null(staging_find(&staging, (50 + i - STAY) * BYTES));
    }
    ck_assert_uint_eq(staging.orphan_count, (ROUNDS - STAY) / 2);
    for (uint32_t k = 1; k < ROUNDS - STAY; k += 2) {
        uint32_t i = k * 7 % (ROUNDS - STAY); /* the odd ones, each once */
        uint64_t place = (50 + i) * BYTES;
        ck_assert(!staging_orphan_back(&staging, place, i + 1, i + 1));
        ck_assert(!staging_orphan_back(&staging, place, i, i));
        ck_assert(!staging_orphan_back(&staging, place + 1, i, i + 1));
        ck_assert(staging_orphan_back(&staging, place, i, i + 1));
        ck_assert(!staging_orphan_back(&staging, place, i, i + 1));
        ck_assert(staging_next_free(&staging, &offset));
        ck_assert_uint_eq(offset, place);
        ck_assert(!staging_next_free(&staging, &offset));
        ck_assert(!staging_orphan_back(&staging, place, i, i + 1));
    }
    ck_assert_uint_eq(staging.orphan_count, 0);
    staging_clear(&staging);
}
END_TEST

START_TEST(test_whole_end)
{
    struct staging staging;
    struct staging_slot own = {0};
    ck_assert_int_eq(staging_init(&staging, 1000, 100, 3), 0);
    ck_assert_int_eq(staging_add_own(&staging, &own, 2000, 50), 0);
    const uint64_t ends[][2] = {{5, 5},       {1000, 1000}, {1001, 1000}, {1099, 1000},
                                {1100, 1100}, {1299, 1200}, {1300, 1300}, {1999, 1999},
                                {2000, 2000}, {2049, 2000}, {2050, 2050}, {9999, 9999}};
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        ck_assert_uint_eq(staging_whole_end(&staging, ends[i][0]), ends[i][1]);
    staging_remove_own(&staging, &own);
    staging_clear(&staging);
}
END_TEST

/* A slot of the pool holds several chunks. Each chunk is back once, and the slot is free when it is
 * given back. Chunks that go ahead have half of the pool, and all chunks together are no more than
 * the ring has room for. */
START_TEST(test_pool)
{
    enum { POOL = 64 * 1024, CHUNKS = 100 };
    struct staging staging;
    ck_assert_int_eq(staging_init(&staging, FIRST, BYTES, 10), 0);
    ck_assert_int_eq(staging_add_pool(&staging, 1u << 20, POOL, CHUNKS), 0);
    ck_assert_uint_eq(staging_pool_room(&staging), 90);
    struct staging_slot *slot = staging_take_pool(&staging, POOL / 2, 70, STAGING_AHEAD);
    ck_assert_ptr_nonnull(slot);
    ck_assert_ptr_eq(staging_find(&staging, slot->offset + 4096), slot);
    ck_assert_ptr_null(staging_take_pool(&staging, 64, 1, STAGING_AHEAD));
    ck_assert_uint_eq(staging_pool_room(&staging), 20);
    ck_assert_ptr_null(staging_take_pool(&staging, 64, 21, STAGING_IN_TURN));
    ck_assert_ptr_null(staging_take_pool(&staging, POOL, 1, STAGING_IN_TURN));
    slot->chunk = 7;
    ck_assert(!staging_chunk_back(slot, 6) && !staging_chunk_back(slot, 77));
    for (uint32_t i = 0; i < 70; i++)
        ck_assert(staging_chunk_back(slot, 7 + i) && !staging_chunk_back(slot, 7 + i));
    ck_assert_uint_eq(slot->chunks_back, 70);
    staging_give_back(&staging, slot);
    ck_assert_ptr_null(staging_find(&staging, slot->offset + 4096));
    ck_assert_uint_eq(staging_pool_room(&staging), 90);
    ck_assert_ptr_nonnull(staging_take_pool(&staging, POOL, 90, STAGING_IN_TURN));
    staging_clear(&staging);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("staging");
    TCase *cases = tcase_create("staging");
    tcase_add_test(cases, test_pool);
    tcase_add_test(cases, test_whole_end);
    tcase_add_test(cases, test_shared_slots_first_then_own);
    tcase_add_test(cases, test_no_more_held_than_allowed);
    tcase_add_test(cases, test_half_for_those_that_go_ahead);
    tcase_add_test(cases, test_every_group_keeps_its_own);
    tcase_add_test(cases, test_without_shared_slots);
    tcase_add_test(cases, test_larger_chunks_use_their_own_slot_only);
    tcase_add_test(cases, test_find);
    tcase_add_test(cases, test_abandon);
    tcase_add_test(cases, test_orphans);
    tcase_add_test(cases, test_restart);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
