/* The five lines of shoalctl why, of documents of every kind, and of some that nobody would send.
 */
#include "server/shoalctl/shoalctl_why.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "server/waits/verdict.h"
#include "tests/lib/suite.h"

static char *print(json_t *why)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    shoalctl_print_why(out, why);
    fclose(out);
    json_decref(why);
    return text;
}

static json_t *document(const char *kind, const char *to)
{
    json_t *why = json_pack("{ss ss ss si ss si si si sf sf sf sf s[]}", "type", "why", "job",
                            "train", "kind", kind, "rank", 3, "of_node", "b", "times", 96,
                            "collectives", 100, "step_collectives", 10, "window_s", 4.0, "step_ms",
                            45.0, "lost_ms", 18.0, "without_ms", 27.0, "silent_nodes");
    ck_assert_ptr_nonnull(why);
    if (to)
        json_object_set_new(why, "to_node", json_string(to));
    return why;
}

static void expect(json_t *why, const char *wanted)
{
    char *text = print(why);
    ck_assert_str_eq(text, wanted);
    free(text);
}

static void expect_part(json_t *why, const char *part)
{
    int lines = 0;
    char *text = print(why);
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    ck_assert_msg(strstr(text, part) != NULL, "no \"%s\" in:\n%s", part, text);
    ck_assert_int_eq(lines, 5);
    for (const char *at = text; *at; at++)
        ck_assert_msg((unsigned char)*at >= ' ' || *at == '\n', "byte %d", *at);
    free(text);
}

START_TEST(test_all_of_it)
{
    expect(document("rank late", NULL),
           "job        train, steps of 45.0 ms, 10 collectives each\n"
           "who        rank 3 on node b starts late: it computes longer than the others\n"
           "how often  last in 96 of 100 collectives, in 4.0 s\n"
           "how much   the others wait 18.0 ms of each 45.0 ms for that alone\n"
           "without    27.0 ms, 40 % less\n");
}
END_TEST

/* Every kind that a daemon tells has its words. */
START_TEST(test_kinds)
{
    static const char *const parts[] = {
        [VERDICT_UNKNOWN] = "not known yet",
        [VERDICT_NOBODY] = "nobody: ",
        [VERDICT_RANK_LATE] = "rank 3 on node b starts late",
        [VERDICT_RANK_DRAINS] = "rank 3 on node b starts in time, but",
        [VERDICT_NODE_LATE] = "all ranks of node b start late",
        [VERDICT_LINK_SLOW] = "the link from node b to node c is slow",
        [VERDICT_RECEIVER_SLOW] = "node b takes slowly",
        [VERDICT_SERVER_SLOW] = "the daemon of node b sums slowly",
    };
    for (int kind = VERDICT_UNKNOWN; kind <= VERDICT_SERVER_SLOW; kind++)
        expect_part(document(verdict_kind_name((enum verdict_kind)kind), "c"), parts[kind]);
    expect_part(document("link slow", NULL), "the link from node b is slow");
    expect_part(document("something new", NULL), "who        something new\n");
}
END_TEST

START_TEST(test_nobody_has_no_figures)
{
    json_t *why = document("nobody", NULL);
    json_object_set_new(why, "of_node", json_null());
    json_object_set_new(why, "step_collectives", json_integer(1));
    expect(why, "job        train, a collective each 45.0 ms\n"
                "who        nobody: no rank, link or server is behind the others\n"
                "how often  -\nhow much   -\nwithout    -\n");
}
END_TEST

/* A figure that a daemon does not know for sure is a bound. */
START_TEST(test_what_is_not_sure)
{
    json_t *why = document("link slow", NULL);
    json_object_set_new(why, "sure", json_false());
    expect_part(why,
                "for that alone, its results not counted\nwithout    about 27.0 ms, 40 % less\n");
    why = document("link slow", NULL);
    json_object_set_new(why, "sure", json_true());
    expect_part(why, "for that alone\nwithout    27.0 ms, 40 % less\n");
}
END_TEST

START_TEST(test_daemons_that_are_silent)
{
    json_t *why = document("nobody", NULL);
    json_object_set_new(why, "silent_nodes", json_pack("[ss]", "c", "d"));
    expect_part(why, "10 collectives each; no answer of node c, d\n");
    why = document("nobody", NULL);
    json_object_set_new(why, "silent_nodes", json_pack("[ssssss]", "c", "d", "e", "f", "g", "h"));
    expect_part(why, "no answer of node c, d, e, f and 2 more\n");
}
END_TEST

/* Names are text: no control characters, no formats; what is missing is "-" or 0. */
START_TEST(test_hostile_documents)
{
    json_t *why = document("link slow", "%s%n\x1b[2J");
    json_object_set_new(why, "job", json_string("%R\n%n"));
    json_object_set_new(why, "of_node", json_string("%T\x7f"));
    expect_part(why, "the link from node %T\\u007f to node %s%n\\u001b[2J is slow");
    expect_part(json_object(), "who        -\n");
    expect_part(json_pack("{s[] s{} s[i]}", "kind", "of_node", "silent_nodes", 1), "job        -");
    expect_part(json_pack("{ss}", "kind", "%R %N %"), "who        %R %N %\n");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoalctl_why");
    TCase *cases = tcase_create("shoalctl_why");
    tcase_add_test(cases, test_all_of_it);
    tcase_add_test(cases, test_kinds);
    tcase_add_test(cases, test_nobody_has_no_figures);
    tcase_add_test(cases, test_what_is_not_sure);
    tcase_add_test(cases, test_daemons_that_are_silent);
    tcase_add_test(cases, test_hostile_documents);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
