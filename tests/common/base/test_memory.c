#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/memory.h"
#include "tests/lib/suite.h"

/* The sanitizers' allocators end the process in their own way. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_ALLOCATOR 1
#else
#define OWN_ALLOCATOR 0
#endif

START_TEST(test_items_are_zeroed)
{
    uint64_t *items = memory_require(100, sizeof(*items), "numbers");
    for (int i = 0; i < 100; i++)
        ck_assert_uint_eq(items[i], 0);
    memset(items, 0xff, 100 * sizeof(*items));
    free(items);
}
END_TEST

START_TEST(test_no_items_are_a_place_all_the_same)
{
    void *first = memory_require(0, 16, "nothing");
    void *second = memory_require(0, 16, "nothing");
    ck_assert_ptr_nonnull(first);
    ck_assert_ptr_nonnull(second);
    ck_assert_ptr_ne(first, second);
    free(first);
    free(second);
}
END_TEST

/* Put into `said` what a child that asks for `count` items of `item_bytes` bytes says on stderr.
 * Return how it ends. */
static int require_in_child(size_t count, size_t item_bytes, char *said, size_t room)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        free(memory_require(count, item_bytes, "a great many things"));
        _exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    ssize_t got;
    while ((got = read(ends[0], said + length, room - 1 - length)) > 0)
        length += (size_t)got;
    said[length] = '\0';
    close(ends[0]);
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return status;
}

static const struct {
    size_t count;
    size_t item_bytes;
    const char *said;
} too_much[] = {
    {SIZE_MAX / 4, 8, "(4611686018427387903 x 8 bytes)"}, /* the product overflows */
    {1, SIZE_MAX / 2, "(1 x 9223372036854775807 bytes)"}, /* more than a machine has addresses */
};

START_TEST(test_lack_ends_the_process_with_a_line)
{
    if (OWN_ALLOCATOR) {
        suite_skip("test_lack_ends_the_process_with_a_line",
                   "a sanitizer has an allocator of its own");
        return;
    }
    char said[256];
    int status = require_in_child(too_much[_i].count, too_much[_i].item_bytes, said, sizeof(said));
    ck_assert(WIFSIGNALED(status));
    ck_assert_int_eq(WTERMSIG(status), SIGABRT);
    ck_assert_ptr_nonnull(strstr(said, "out of memory: no room for a great many things"));
    ck_assert_ptr_nonnull(strstr(said, too_much[_i].said));
    ck_assert_ptr_eq(strchr(said, '\n'), said + strlen(said) - 1);
}
END_TEST

START_TEST(test_what_there_is_room_for_is_given)
{
    char said[256];
    ck_assert_int_eq(require_in_child(1000, 1000, said, sizeof(said)), 0);
    ck_assert_str_eq(said, "");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("memory");
    TCase *tests = tcase_create("memory");
    tcase_add_test(tests, test_items_are_zeroed);
    tcase_add_test(tests, test_no_items_are_a_place_all_the_same);
    tcase_add_loop_test(tests, test_lack_ends_the_process_with_a_line, 0,
                        (int)(sizeof(too_much) / sizeof(too_much[0])));
    tcase_add_test(tests, test_what_there_is_room_for_is_given);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
