/* A daemon's view of an arena whose worker does all that it can: any header, indices that jump,
 * entries that change, any seals. The memory is as large as it says, so that a sanitizer sees the
 * first byte outside. */
#include "common/format/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/suite.h"

#define BYTES (1u << 20)
#define ENTRIES 16u
#define ROUNDS 20000
#define SEEDS 8

static uint64_t random_next(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15;
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Numbers at which sums overflow or comparisons turn, and any others. */
static uint64_t nasty(uint64_t *state)
{
    static const uint64_t edges[] = {0,          1,          16,         32,
                                     64,         4096,       65536,      BYTES - 64,
                                     BYTES,      BYTES + 64, UINT32_MAX, 1u << 31,
                                     1ull << 32, INT64_MAX,  UINT64_MAX, UINT64_MAX - 63,
                                     1ull << 63};
    uint64_t choice = random_next(state), value = edges[choice % 17];
    switch (choice >> 32 & 3) {
    case 0:
        return value;
    case 1:
        return value + (choice >> 40 & 15) * 64;
    case 2:
        return value - (choice >> 40 & 15);
    default:
        return (random_next(state) % (BYTES / 64)) * 64;
    }
}

static uint8_t *format_exactly(struct arena *arena)
{
    uint8_t *memory = aligned_alloc(64, BYTES);
    ck_assert_ptr_nonnull(memory);
    memset(memory, 0, BYTES);
    ck_assert_int_eq(arena_format(arena, memory, BYTES, ENTRIES, NULL), 0);
    return memory;
}

static void header_twist(struct arena_header *header, uint64_t *state)
{
    uint64_t value = nasty(state);
    switch (random_next(state) % 6) {
    case 0:
        header->submission_offset = value;
        break;
    case 1:
        header->completion_offset = value;
        break;
    case 2:
        header->data_offset = value;
        break;
    case 3:
        header->submission_entries = 1u << (value % 32);
        break;
    case 4:
        header->completion_entries = 1u << (value % 32);
        break;
    default:
        header->total_bytes = random_next(state) % 4 ? BYTES : value;
    }
}

/* Every entry of both rings can be used, and neither reaches into the header or the data. */
static void use_all_of_it(struct arena *arena, uint8_t *memory)
{
    uint64_t submissions = (uint64_t)((uint8_t *)arena->submissions - memory),
             completions = (uint64_t)((uint8_t *)arena->completions - memory),
             entries = arena->submission_mask + 1ull, answers = arena->completion_mask + 1ull;
    ck_assert_uint_ge(submissions, sizeof(struct arena_header));
    ck_assert_uint_le(submissions + entries * 64, completions);
    ck_assert_uint_le(completions + answers * 32, arena->data_offset);
    ck_assert_uint_lt(arena->data_offset, BYTES);
    struct arena_header *header = (struct arena_header *)(void *)memory;
    struct arena_submission submission;
    const struct arena_completion completion = {.type = ARENA_REQUEST_DONE};
    atomic_store(&header->submission_tail, (uint32_t)entries);
    for (uint64_t i = 0; i < entries; i++)
        ck_assert_int_eq(arena_pop_submission(arena, &submission), 1);
    ck_assert_int_eq(arena_pop_submission(arena, &submission), 0);
    atomic_store(&header->completion_head, 0);
    for (uint64_t i = 0; i < answers; i++)
        if (!arena_push_completion(arena, &completion))
            ck_abort_msg("completion %d of %d", (int)i, (int)answers);
    ck_assert(!arena_push_completion(arena, &completion));
}

START_TEST(any_header_is_refused_or_lies_inside)
{
    struct arena arena, view;
    uint8_t *memory = format_exactly(&arena);
    struct arena_header good;
    memcpy(&good, memory, sizeof(good));
    uint64_t state = (uint64_t)_i;
    int taken = 0, refused = 0;
    for (int round = 0; round < ROUNDS; round++) {
        memcpy(memory, &good, sizeof(good));
        for (uint64_t twists = 1 + random_next(&state) % 3; twists > 0; twists--)
            header_twist((struct arena_header *)(void *)memory, &state);
        struct error error = {0};
        int code = arena_attach_memory(&view, memory, BYTES, &error);
        if (code == 0) {
            if (taken++ % 16 == 0)
                use_all_of_it(&view, memory);
        } else {
            ck_assert(code == ERR_PROTOCOL && error.code == code && error.text[0] != '\0');
            refused++;
        }
    }
    ck_assert_int_gt(taken, 100);
    ck_assert_int_gt(refused, ROUNDS / 2);
    free(memory);
}
END_TEST

/* The worker writes everywhere in the header and the rings between the daemon's calls. The daemon
 * keeps its own geometry: it takes at most a ring's worth, in order, and answers into the ring. */
START_TEST(indices_and_entries_that_change_do_no_harm)
{
    struct arena arena;
    uint8_t *memory = format_exactly(&arena);
    struct arena_header *header = (struct arena_header *)(void *)memory;
    uint64_t state = 1000 + (uint64_t)_i, data = arena.data_offset;
    uint32_t read = 0, written = 0;
    int popped = 0, nonsense = 0, pushed = 0;
    memset(memory + data, 0x5a, BYTES - data);
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t jump = random_next(&state) % 2 ? (uint32_t)(random_next(&state) % 40)
                                                : (uint32_t)nasty(&state);
        atomic_store(&header->submission_tail, read + jump);
        atomic_store(&header->submission_head, (uint32_t)nasty(&state));
        atomic_store(&header->completion_tail, (uint32_t)nasty(&state));
        atomic_store(&header->completion_head, written - (uint32_t)(random_next(&state) % 40));
        header_twist(header, &state);
        uint64_t mark = random_next(&state);
        memcpy(memory + 4096 + (read % ENTRIES) * 64 + 8, &mark, 8);
        struct arena_submission submission;
        int result = arena_pop_submission(&arena, &submission);
        ck_assert_int_eq(result, jump == 0 ? 0 : jump <= ENTRIES ? 1 : ERR_PROTOCOL);
        if (result == 1) {
            ck_assert_uint_eq(submission.request, mark);
            ck_assert_uint_eq(atomic_load(&header->submission_head), ++read);
        }
        popped += result == 1;
        nonsense += result < 0;
        bool room = written - atomic_load(&header->completion_head) < 2 * ENTRIES;
        const struct arena_completion completion = {.type = ARENA_REQUEST_DONE, .request = mark};
        ck_assert_int_eq(arena_push_completion(&arena, &completion), room);
        written += room;
        pushed += room;
    }
    for (uint64_t i = data; i < BYTES; i++)
        if (memory[i] != 0x5a)
            ck_abort_msg("byte %d of the data is overwritten", (int)i);
    ck_assert(popped > 100 && nonsense > 100 && pushed > 100);
    free(memory);
}
END_TEST

/* Against the definition in numbers that cannot overflow. */
START_TEST(ranges_are_as_in_wide_numbers)
{
    struct arena arena;
    uint8_t *memory = format_exactly(&arena);
    uint64_t state = 2000 + (uint64_t)_i;
    int valid = 0;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t offset = nasty(&state), bytes = nasty(&state);
        bool inside = offset % 64 == 0 && offset >= arena.data_offset &&
                      (unsigned __int128)offset + bytes <= BYTES;
        if (arena_range_valid(&arena, offset, bytes) != inside)
            ck_abort_msg("offset %#lx bytes %#lx", (unsigned long)offset, (unsigned long)bytes);
        valid += inside;
    }
    ck_assert_int_gt(valid, 50);
    free(memory);
}
END_TEST

/* Every set of seals: only one that forbids shrinking, and allows writing, is taken. */
START_TEST(every_set_of_seals)
{
    for (int set = 0; set < 16; set++) {
        int seals = (set & 1 ? F_SEAL_SHRINK : 0) | (set & 2 ? F_SEAL_GROW : 0) |
                    (set & 4 ? F_SEAL_WRITE : 0) | (set & 8 ? F_SEAL_SEAL : 0);
        int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        struct arena arena, view;
        uint8_t *memory = format_exactly(&arena);
        ck_assert_int_eq(write(fd, memory, BYTES), BYTES);
        free(memory);
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
        struct error error = {0};
        bool right = (set & 1) && !(set & 4);
        ck_assert_int_eq(arena_attach(&view, fd, BYTES, &error), right ? 0 : ERR_PROTOCOL);
        if (right) {
            ck_assert_int_eq(ftruncate(fd, 0), -1); /* it cannot be taken away any more */
            arena_unmap(&view);
            ck_assert_int_eq(arena_attach(&view, fd, BYTES - 1, &error), ERR_MEMORY);
        } else {
            ck_assert_ptr_nonnull(strstr(error.text, "seal"));
        }
        close(fd);
    }
}
END_TEST

/* A page of such memory may be missing when it is touched (SIGBUS). */
START_TEST(huge_page_memory_is_refused)
{
    int fd =
        memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | 21u << MAP_HUGE_SHIFT);
    if (fd < 0) {
        suite_skip("huge_page_memory_is_refused", "memfd_create with MFD_HUGETLB: %s",
                   strerror(errno));
        return;
    }
    if (ftruncate(fd, 2 * BYTES) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0) {
        suite_skip("huge_page_memory_is_refused", "no memory of huge pages: %s", strerror(errno));
        close(fd);
        return;
    }
    struct arena arena;
    struct error error;
    ck_assert_int_eq(arena_attach(&arena, fd, 2 * BYTES, &error), ERR_PROTOCOL);
    ck_assert_msg(strstr(error.text, "huge pages (MFD_HUGETLB)") != NULL, "%s", error.text);
    close(fd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("arena_hostile");
    TCase *hostile = tcase_create("hostile"); /* _i: the seed */
    tcase_set_timeout(hostile, 120);
    tcase_add_loop_test(hostile, any_header_is_refused_or_lies_inside, 0, SEEDS);
    tcase_add_loop_test(hostile, indices_and_entries_that_change_do_no_harm, 0, SEEDS);
    tcase_add_loop_test(hostile, ranges_are_as_in_wide_numbers, 0, SEEDS);
    tcase_add_test(hostile, every_set_of_seals);
    tcase_add_test(hostile, huge_page_memory_is_refused);
    suite_add_tcase(suite, hostile);
    return suite_main(suite);
}
