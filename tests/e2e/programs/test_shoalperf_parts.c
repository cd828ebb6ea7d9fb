/* shoalperf's collectives in parts over real daemons: every type, odd counts, uneven parts. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "tests/lib/worker/perf_run.h"

#define ODD "--count 1,3,1001 -w 0 -n 1 -d all"

static const char *const parted[] = {"all_gather", "reduce_scatter", "gather -r 1", "scatter -r 2",
                                     "all_to_all"};
#define PARTED 5

/* _i: the collective. Private and arena memory, parts of one size and of many, everybody's own part
 * in place: each in every second shape, which is another one in the next collective. */
START_TEST(test_parts)
{
    static const char *const shapes[] = {"--nodes 1 -n 4", "--nodes 2 -n 2", "--nodes 3 -n 1",
                                         "--nodes 2 -n 2 --cpu-nodes 1"};
    static const char *const ways[] = {
        "", "--uneven", "--arena", "--uneven --arena", "--in-place", "--uneven --in-place --arena"};
    char words[256];
    int ways_count = strcmp(parted[_i], "all_to_all") == 0 ? 4 : 6;
    for (int i = 0; i < 4; i++)
        for (int k = (i + _i) % 2; k < (i < 2 ? ways_count : 2); k += 2) {
            snprintf(words, sizeof(words), "%s --count 1,3,%s -w 1 -n 2 -d %s %s", parted[_i],
                     k < 2 ? "1000003" : "100003", k == 0 ? "half" : "float", ways[k]);
            ck_assert_int_eq(perf_rows_measured(shapes[i], words), 3);
        }
}
END_TEST

START_TEST(test_parts_of_every_type)
{
    static const char *const shapes[] = {"--nodes 1 -n 4", "--nodes 2 -n 2"};
    char words[256];
    snprintf(words, sizeof(words), "%s --count 1,3,%s -w 0 -n 1 -d all%s", parted[_i],
             strcmp(parted[_i], "reduce_scatter") == 0 ? "1000003" : "1001",
             _i % 2 ? " --uneven" : "");
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(perf_rows_measured(shapes[i], words), 3 * PERF_TYPES);
}
END_TEST

START_TEST(test_reduce_scatter_every_operation)
{
    ck_assert_int_eq(perf_rows_measured("--nodes 1 -n 4", "reduce_scatter -o all " ODD),
                     3 * PERF_PAIRS);
    ck_assert_int_eq(perf_rows_measured("--nodes 2 -n 2", "reduce_scatter -o all --uneven " ODD),
                     3 * PERF_PAIRS);
}
END_TEST

/* Sizes are of the large buffer. */
START_TEST(test_parts_sizes)
{
    char words[256];
    for (int i = 0; i < PARTED; i++) {
        snprintf(words, sizeof(words), "%s -b 4 -e 16M -f 16 -w 1 -n 2", parted[i]);
        ck_assert_int_eq(perf_rows_measured("--nodes 2 -n 2", words), 6);
        snprintf(words, sizeof(words), "%s -r 0 --count 1,1000 -w 0 -n 1", parted[i]);
        ck_assert_int_eq(perf_rows_measured("--nodes 1 -n 1", words), 2);
    }
}
END_TEST

/* Every rank to the next one: what it gets is the other's. */
START_TEST(test_sendrecv)
{
    static const char *const shapes[] = {"--nodes 1 -n 4", "--nodes 2 -n 2", "--nodes 3 -n 1",
                                         "--nodes 2 -n 1 --cpu-nodes 1"};
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(perf_rows_measured(shapes[i], "sendrecv -r 0 " ODD), 3 * PERF_TYPES);
        ck_assert_int_eq(
            perf_rows_measured(shapes[i], "sendrecv -b 4 -e 16M -f 16 -w 1 -n 2 --arena"), 6);
        ck_assert_int_eq(perf_rows_measured(shapes[i], "sendrecv --count 1000003 -w 1 -n 2"), 1);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoalperf_parts");
    TCase *tests = tcase_create("shoalperf_parts");
    tcase_set_timeout(tests, 600);
    tcase_add_loop_test(tests, test_parts, 0, PARTED);
    tcase_add_loop_test(tests, test_parts_of_every_type, 0, PARTED);
    tcase_add_test(tests, test_reduce_scatter_every_operation);
    tcase_add_test(tests, test_parts_sizes);
    tcase_add_test(tests, test_sendrecv);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
