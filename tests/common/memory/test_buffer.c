#include "common/memory/buffer.h"

#include <string.h>

#include "tests/lib/suite.h"

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("%s", #condition);                                                        \
    } while (0)

#define BUFFER_BYTES 4160u

static struct buffer_pool *make(uint32_t buffers)
{
    struct buffer_pool *pool = NULL;
    struct error error = {0};
    ck_assert_int_eq(
        buffer_pool_create(&pool, BUFFER_BYTES, (uint64_t)buffers * BUFFER_BYTES, NULL, &error), 0);
    return pool;
}

START_TEST(buffers_are_aligned_apart_and_of_the_size_asked_for)
{
    struct buffer_pool *pool = make(100);
    struct buffer *buffers[50];
    for (int i = 0; i < 50; i++) {
        buffers[i] = buffer_get(pool);
        ck_assert_ptr_nonnull(buffers[i]);
        ck_assert_uint_eq((uintptr_t)buffers[i]->data % 64, 0);
        ck_assert_uint_eq(buffers[i]->capacity, BUFFER_BYTES);
        ck_assert_uint_eq(buffers[i]->references, 1);
        ck_assert_ptr_null(buffers[i]->registration);
        memset(buffers[i]->data, i, buffers[i]->capacity);
    }
    ck_assert_uint_eq(buffer_pool_used_bytes(pool), 50u * BUFFER_BYTES);
    ck_assert_uint_ge(buffer_pool_allocated_bytes(pool), 50u * BUFFER_BYTES);
    for (int i = 0; i < 50; i++) {
        EXPECT(buffers[i]->data[0] == i && buffers[i]->data[BUFFER_BYTES - 1] == i);
        buffer_release(buffers[i]);
    }
    ck_assert_uint_eq(buffer_pool_used_bytes(pool), 0);
    buffer_pool_destroy(pool);
}
END_TEST

START_TEST(sizes_are_rounded_up_to_cache_lines)
{
    static const struct {
        uint32_t asked, got;
    } cases[] = {{1, 64}, {64, 64}, {65, 128}, {4159, 4160}, {4160, 4160}};
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer_pool *pool = NULL;
        ck_assert_int_eq(buffer_pool_create(&pool, cases[i].asked, 1 << 20, NULL, NULL), 0);
        struct buffer *buffer = buffer_get(pool);
        ck_assert_uint_eq(buffer->capacity, cases[i].got);
        ck_assert_uint_eq(buffer_pool_limit_bytes(pool), 1 << 20);
        buffer_release(buffer);
        buffer_pool_destroy(pool);
    }
}
END_TEST

START_TEST(the_last_reference_gives_it_back)
{
    struct buffer_pool *pool = make(4);
    struct buffer *buffer = buffer_get(pool);
    buffer_hold(buffer);
    buffer_hold(buffer);
    ck_assert_uint_eq(buffer->references, 3);
    buffer_release(buffer);
    buffer_release(buffer);
    ck_assert_uint_eq(buffer_pool_used_bytes(pool), BUFFER_BYTES);
    struct buffer *other = buffer_get(pool);
    ck_assert_ptr_ne(other, buffer);
    buffer_release(buffer);
    ck_assert_uint_eq(buffer_pool_used_bytes(pool), BUFFER_BYTES);
    ck_assert_ptr_eq(buffer_get(pool), buffer);
    buffer_release(other);
    buffer_release(buffer);
    buffer_release(NULL);
    buffer_pool_destroy(pool);
}
END_TEST

START_TEST(the_steady_state_takes_no_memory)
{
    struct buffer_pool *pool = make(64);
    struct buffer *buffers[16];
    for (int i = 0; i < 16; i++)
        buffers[i] = buffer_get(pool);
    uint64_t allocated = buffer_pool_allocated_bytes(pool);
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < 16; i++)
            buffer_release(buffers[(i * 5) % 16]);
        for (int i = 0; i < 16; i++)
            EXPECT((buffers[i] = buffer_get(pool)) != NULL);
    }
    ck_assert_uint_eq(buffer_pool_allocated_bytes(pool), allocated);
    for (int i = 0; i < 16; i++)
        buffer_release(buffers[i]);
    buffer_pool_destroy(pool);
}
END_TEST

/* --- promises --------------------------------------------------------------------------------- */

START_TEST(promises_end_at_the_limit)
{
    struct buffer_pool *pool = make(100);
    struct error error = {0};
    ck_assert_int_eq(buffer_pool_reserve(pool, 60, &error), 0);
    ck_assert_int_eq(buffer_pool_reserve(pool, 40, &error), 0);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(pool), 100u * BUFFER_BYTES);
    ck_assert_int_eq(buffer_pool_reserve(pool, 0, &error), 0);
    ck_assert_int_eq(buffer_pool_reserve(pool, 1, &error), ERR_MEMORY);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(pool), 100u * BUFFER_BYTES);
    buffer_pool_unreserve(pool, 40);
    ck_assert_int_eq(buffer_pool_reserve(pool, 41, &error), ERR_MEMORY);
    ck_assert_int_eq(buffer_pool_reserve(pool, 40, &error), 0);
    buffer_pool_unreserve(pool, 100);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(pool), 0);
    buffer_pool_destroy(pool);
}
END_TEST

START_TEST(a_refusal_names_what_was_asked_promised_and_allowed)
{
    struct buffer_pool *pool = make(10);
    struct error error = {0};
    ck_assert_int_eq(buffer_pool_reserve(pool, 3, &error), 0);
    ck_assert_int_eq(buffer_pool_reserve(pool, 8, &error), ERR_MEMORY);
    ck_assert_int_eq(error.code, ERR_MEMORY);
    ck_assert_str_eq(error.text, "8 chunk buffers (33280 bytes) asked for, 12480 bytes already "
                                 "promised, the limit limits.memory_bytes is 41600");
    ck_assert_int_eq(buffer_pool_reserve(pool, 8, NULL), ERR_MEMORY);
    buffer_pool_unreserve(pool, 3);
    buffer_pool_destroy(pool);
}
END_TEST

START_TEST(promises_do_not_overflow)
{
    struct buffer_pool *pool = make(10);
    ck_assert_int_eq(buffer_pool_reserve(pool, 5, NULL), 0);
    static const uint64_t counts[] = {UINT64_MAX, UINT64_MAX - 4, UINT64_MAX / BUFFER_BYTES + 1,
                                      11};
    for (unsigned i = 0; i < 4; i++)
        ck_assert_int_eq(buffer_pool_reserve(pool, counts[i], NULL), ERR_MEMORY);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(pool), 5u * BUFFER_BYTES);
    buffer_pool_unreserve(pool, 5);
    buffer_pool_destroy(pool);
}
END_TEST

START_TEST(a_limit_below_one_buffer_promises_nothing)
{
    struct buffer_pool *pool = NULL;
    ck_assert_int_eq(buffer_pool_create(&pool, BUFFER_BYTES, BUFFER_BYTES - 1, NULL, NULL), 0);
    ck_assert_int_eq(buffer_pool_reserve(pool, 1, NULL), ERR_MEMORY);
    ck_assert_int_eq(buffer_pool_reserve(pool, 0, NULL), 0);
    buffer_pool_destroy(pool);
}
END_TEST

/* --- registration ----------------------------------------------------------------------------- */

struct fabric {
    int slabs;    /* registered now */
    int refusals; /* to come */
    uint8_t *first[16], *end[16];
};

static int fabric_register(void *context, void *address, size_t bytes, void **registration,
                           struct error *error)
{
    struct fabric *fabric = context;
    if (fabric->refusals > 0) {
        fabric->refusals--;
        return error_set(error, ERR_SYSTEM, "no");
    }
    fabric->first[fabric->slabs] = address;
    fabric->end[fabric->slabs] = (uint8_t *)address + bytes;
    *registration = &fabric->first[fabric->slabs];
    fabric->slabs++;
    return 0;
}

static void fabric_unregister(void *context, void *registration)
{
    struct fabric *fabric = context;
    ck_assert_ptr_nonnull(registration);
    fabric->slabs--;
}

START_TEST(slabs_are_registered_and_their_buffers_know_it)
{
    struct fabric fabric = {0};
    struct buffer_pool_io io = {&fabric, fabric_register, fabric_unregister};
    struct buffer_pool *pool = NULL;
    ck_assert_int_eq(buffer_pool_create(&pool, BUFFER_BYTES, 1 << 20, &io, NULL), 0);
    struct buffer *buffers[40];
    for (int i = 0; i < 40; i++) {
        buffers[i] = buffer_get(pool);
        uint8_t **slab = buffers[i]->registration;
        ptrdiff_t number = slab - fabric.first;
        ck_assert_int_ge(number, 0);
        ck_assert_int_lt(number, fabric.slabs);
        ck_assert(buffers[i]->data >= fabric.first[number]);
        ck_assert(buffers[i]->data + BUFFER_BYTES <= fabric.end[number]);
    }
    ck_assert_int_eq(fabric.slabs, 3);
    for (int i = 0; i < 40; i++)
        buffer_release(buffers[i]);
    ck_assert_int_eq(fabric.slabs, 3);
    buffer_pool_destroy(pool);
    ck_assert_int_eq(fabric.slabs, 0);
}
END_TEST

START_TEST(a_slab_that_cannot_be_registered_is_no_memory)
{
    struct fabric fabric = {.refusals = 2};
    struct buffer_pool_io io = {&fabric, fabric_register, fabric_unregister};
    struct buffer_pool *pool = NULL;
    ck_assert_int_eq(buffer_pool_create(&pool, BUFFER_BYTES, 1 << 20, &io, NULL), 0);
    ck_assert_ptr_null(buffer_get(pool));
    ck_assert_ptr_null(buffer_get(pool));
    ck_assert_uint_eq(buffer_pool_used_bytes(pool), 0);
    ck_assert_uint_eq(buffer_pool_allocated_bytes(pool), 0);
    struct buffer *buffer = buffer_get(pool);
    ck_assert_ptr_nonnull(buffer);
    buffer_release(buffer);
    buffer_pool_destroy(pool);
    ck_assert_int_eq(fabric.slabs, 0);
}
END_TEST

/* Buffers that a closed fabric had go with the pool: the address sanitizer sees it when they do
 * not. */
START_TEST(forgotten_buffers_go_with_the_pool)
{
    struct buffer_pool *pool = make(20);
    struct buffer *kept = buffer_get(pool);
    for (int i = 0; i < 18; i++)
        EXPECT(buffer_get(pool));
    buffer_pool_forget(pool, 18);
    ck_assert_uint_eq(buffer_pool_used_bytes(pool), BUFFER_BYTES);
    buffer_release(kept);
    buffer_pool_destroy(pool);
    buffer_pool_destroy(NULL);
}
END_TEST

START_TEST(other_memory_counts_towards_the_limit)
{
    struct buffer_pool *pool = make(10);
    struct error error = {0};
    ck_assert_int_eq(buffer_pool_reserve(pool, 4, &error), 0);
    ck_assert_int_eq(buffer_pool_charge(pool, 6 * BUFFER_BYTES + 1, &error), ERR_MEMORY);
    EXPECT(strstr(error.text, "24961 bytes asked for, 16640 bytes already promised, the limit "
                              "limits.memory_bytes is 41600"));
    ck_assert_int_eq(buffer_pool_charge(pool, UINT64_MAX, &error), ERR_MEMORY);
    ck_assert_int_eq(buffer_pool_charge(pool, 5 * BUFFER_BYTES + 1, &error), 0);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(pool), 9 * BUFFER_BYTES + 1);
    ck_assert_int_eq(buffer_pool_reserve(pool, 1, &error), ERR_MEMORY);
    EXPECT(strstr(error.text, "37441 bytes already promised"));
    ck_assert_int_eq(buffer_pool_charge(pool, BUFFER_BYTES - 1, &error), 0);
    ck_assert_int_eq(buffer_pool_charge(pool, 1, &error), ERR_MEMORY);
    buffer_pool_uncharge(pool, 6 * BUFFER_BYTES);
    ck_assert_int_eq(buffer_pool_reserve(pool, 6, &error), 0);
    buffer_pool_unreserve(pool, 10);
    ck_assert_uint_eq(buffer_pool_reserved_bytes(pool), 0);
    buffer_pool_destroy(pool);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("buffer");
    TCase *tests = tcase_create("buffer");
    tcase_add_test(tests, buffers_are_aligned_apart_and_of_the_size_asked_for);
    tcase_add_test(tests, sizes_are_rounded_up_to_cache_lines);
    tcase_add_test(tests, the_last_reference_gives_it_back);
    tcase_add_test(tests, the_steady_state_takes_no_memory);
    tcase_add_test(tests, promises_end_at_the_limit);
    tcase_add_test(tests, a_refusal_names_what_was_asked_promised_and_allowed);
    tcase_add_test(tests, promises_do_not_overflow);
    tcase_add_test(tests, a_limit_below_one_buffer_promises_nothing);
    tcase_add_test(tests, slabs_are_registered_and_their_buffers_know_it);
    tcase_add_test(tests, a_slab_that_cannot_be_registered_is_no_memory);
    tcase_add_test(tests, forgotten_buffers_go_with_the_pool);
    tcase_add_test(tests, other_memory_counts_towards_the_limit);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
