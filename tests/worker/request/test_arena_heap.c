#include "worker/request/arena_heap.h"

#include "common/base/error.h"
#include "tests/lib/suite.h"

#include <string.h>

#define START 8192u
#define BYTES (1u << 20)

static void check_heap(const struct arena_heap *heap)
{
    uint64_t offset = START, free_bytes = 0;
    for (size_t i = 0; i < heap->block_count; i++) {
        const struct arena_heap_block *block = &heap->blocks[i];
        ck_assert_uint_eq(block->offset, offset);
        ck_assert_uint_eq(block->bytes % ARENA_HEAP_ALIGNMENT, 0);
        ck_assert_uint_gt(block->bytes, 0);
        if (!block->used) {
            free_bytes += block->bytes;
            ck_assert(i == 0 || heap->blocks[i - 1].used);
        }
        offset += block->bytes;
    }
    ck_assert_uint_eq(offset, START + BYTES);
    ck_assert_uint_eq(free_bytes, arena_heap_free_bytes(heap));
}

START_TEST(test_allocate_and_free)
{
    struct arena_heap heap;
    uint64_t a, b, c;
    ck_assert_int_eq(arena_heap_init(&heap, START, BYTES + 63), 0);
    check_heap(&heap);
    ck_assert_int_eq(arena_heap_allocate(&heap, 1, &a), 0);
    ck_assert_int_eq(arena_heap_allocate(&heap, 64, &b), 0);
    ck_assert_int_eq(arena_heap_allocate(&heap, 65, &c), 0);
    ck_assert_uint_eq(a, START);
    ck_assert_uint_eq(b, START + 64);
    ck_assert_uint_eq(c, START + 128);
    check_heap(&heap);
    ck_assert_uint_eq(arena_heap_free_bytes(&heap), BYTES - 256);
    ck_assert_int_eq(arena_heap_free(&heap, b), 0);
    check_heap(&heap);
    uint64_t again;
    ck_assert_int_eq(arena_heap_allocate(&heap, 0, &again), 0);
    ck_assert_uint_eq(again, b);
    ck_assert_int_eq(arena_heap_free(&heap, a), 0);
    ck_assert_int_eq(arena_heap_free(&heap, again), 0);
    ck_assert_int_eq(arena_heap_free(&heap, c), 0);
    ck_assert_uint_eq(heap.block_count, 1);
    ck_assert_uint_eq(arena_heap_largest_bytes(&heap), BYTES);
    arena_heap_clear(&heap);
}
END_TEST

START_TEST(test_full)
{
    struct arena_heap heap;
    uint64_t offset = 7, other;
    ck_assert_int_eq(arena_heap_init(&heap, START, BYTES), 0);
    ck_assert_int_eq(arena_heap_allocate(&heap, BYTES + 1, &offset), ERR_MEMORY);
    ck_assert_int_eq(arena_heap_allocate(&heap, UINT64_MAX, &offset), ERR_MEMORY);
    ck_assert_uint_eq(offset, 7);
    ck_assert_int_eq(arena_heap_allocate(&heap, BYTES, &offset), 0);
    ck_assert_int_eq(arena_heap_allocate(&heap, 1, &other), ERR_MEMORY);
    ck_assert_int_eq(arena_heap_allocate(&heap, 0, &other), ERR_MEMORY);
    ck_assert_uint_eq(arena_heap_largest_bytes(&heap), 0);
    ck_assert_int_eq(arena_heap_free(&heap, offset), 0);
    ck_assert_int_eq(arena_heap_allocate(&heap, BYTES / 2, &offset), 0);
    ck_assert_int_eq(arena_heap_allocate(&heap, BYTES / 2, &other), 0);
    ck_assert_int_eq(arena_heap_free(&heap, offset), 0);
    ck_assert_int_eq(arena_heap_allocate(&heap, BYTES / 2 + 1, &offset), ERR_MEMORY);
    check_heap(&heap);
    arena_heap_clear(&heap);
}
END_TEST

START_TEST(test_wrong_frees)
{
    struct arena_heap heap;
    uint64_t offset;
    ck_assert_int_eq(arena_heap_init(&heap, START, BYTES), 0);
    ck_assert_int_eq(arena_heap_free(&heap, START), ERR_INVALID);
    ck_assert_int_eq(arena_heap_allocate(&heap, 200, &offset), 0);
    ck_assert_int_eq(arena_heap_free(&heap, offset + 64), ERR_INVALID);
    ck_assert_int_eq(arena_heap_free(&heap, 0), ERR_INVALID);
    ck_assert_int_eq(arena_heap_free(&heap, UINT64_MAX), ERR_INVALID);
    ck_assert_int_eq(arena_heap_free(&heap, offset), 0);
    ck_assert_int_eq(arena_heap_free(&heap, offset), ERR_INVALID);
    check_heap(&heap);
    arena_heap_clear(&heap);
}
END_TEST

START_TEST(test_random_use)
{
    enum { LIVE = 200 };
    struct arena_heap heap;
    struct {
        uint64_t offset, bytes;
    } live[LIVE] = {{0, 0}};
    static uint8_t owner[BYTES];
    uint64_t state = 12345;
    ck_assert_int_eq(arena_heap_init(&heap, START, BYTES), 0);
    for (int round = 0; round < 20000; round++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        unsigned i = (unsigned)(state >> 33) % LIVE;
        if (live[i].bytes) {
            bool whole = true;
            for (uint64_t j = 0; j < live[i].bytes; j++)
                whole &= owner[live[i].offset - START + j] == i;
            ck_assert(whole);
            ck_assert_int_eq(arena_heap_free(&heap, live[i].offset), 0);
            live[i].bytes = 0;
        } else {
            uint64_t bytes = 1 + (state >> 40) % (round % 10 ? 3000 : 60000);
            if (arena_heap_allocate(&heap, bytes, &live[i].offset) == 0) {
                ck_assert_uint_eq(live[i].offset % ARENA_HEAP_ALIGNMENT, 0);
                live[i].bytes = bytes;
                memset(&owner[live[i].offset - START], (int)i, bytes);
            } else {
                ck_assert_uint_lt(arena_heap_largest_bytes(&heap), bytes);
            }
        }
        if (round % 100 == 0)
            check_heap(&heap);
    }
    for (unsigned i = 0; i < LIVE; i++)
        if (live[i].bytes)
            ck_assert_int_eq(arena_heap_free(&heap, live[i].offset), 0);
    ck_assert_uint_eq(heap.block_count, 1);
    arena_heap_clear(&heap);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("arena_heap");
    TCase *cases = tcase_create("arena_heap");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, test_allocate_and_free);
    tcase_add_test(cases, test_full);
    tcase_add_test(cases, test_wrong_frees);
    tcase_add_test(cases, test_random_use);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
