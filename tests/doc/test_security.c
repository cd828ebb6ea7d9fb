/* That SECURITY.md's table of attempts is true: what a row says is held by the test that the row
 * names, and what the tests of tests/e2e/attacks hold is in the table. */
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/doc/man_page.h"
#include "tests/lib/suite.h"

#define TABLE "| who | tries | what comes of it | held by |"
#define ROWS_LEAST 20

/* A row's last column: a test in a file. */
struct claim {
    char file[64]; /* test_FILE.c */
    char test[96];
};

static struct claim claims[256];
static int claim_count;
static char paths[1024][256]; /* of all test programs */
static int path_count;

/* "... | `FILE` CASE, CASE; `FILE` CASE |" */
static void row_read(char *row)
{
    char *end = strrchr(row, '|');
    ck_assert_ptr_nonnull(end);
    *end = '\0';
    char *column = strrchr(row, '|'), *rest = NULL;
    ck_assert_ptr_nonnull(column);
    for (char *part = strtok_r(column + 1, ";", &rest); part; part = strtok_r(NULL, ";", &rest)) {
        char file[64], *cases = strchr(part, '`'), *more = NULL;
        ck_assert_msg(cases && sscanf(cases, "`%63[a-z_]`", file) == 1, "no test in: %s", row);
        cases = strchr(cases + 1, '`') + 1;
        int before = claim_count;
        for (char *name = strtok_r(cases, " ,", &more); name; name = strtok_r(NULL, " ,", &more)) {
            ck_assert_int_lt(claim_count, (int)(sizeof(claims) / sizeof(claims[0])));
            struct claim *claim = &claims[claim_count++];
            snprintf(claim->file, sizeof(claim->file), "%s", file);
            snprintf(claim->test, sizeof(claim->test), "%s", name);
        }
        ck_assert_msg(claim_count > before, "no test of `%s` in: %s", file, row);
    }
}

static int table_read(void)
{
    char *text = man_file_read("SECURITY.md"), *rest = NULL;
    char *table = strstr(text, TABLE);
    ck_assert_msg(table != NULL, "no table in SECURITY.md");
    int rows = 0;
    char *end = strstr(table, "\n\n");
    if (end)
        *end = '\0';
    for (char *line = strtok_r(table, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (rows++ >= 2) /* behind the head and its rule */
            row_read(line);
    }
    free(text);
    return rows - 2;
}

static int path_keep(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status;
    if (type == FTW_F && strncmp(path + walk->base, "test_", 5) == 0) {
        ck_assert_int_lt(path_count, (int)(sizeof(paths) / sizeof(paths[0])));
        snprintf(paths[path_count++], sizeof(paths[0]), "%s", path);
    }
    return 0;
}

static const char *path_of(const char *file)
{
    char end[80];
    snprintf(end, sizeof(end), "/test_%s.c", file);
    for (int i = 0; i < path_count; i++) {
        size_t length = strlen(paths[i]);
        if (length > strlen(end) && strcmp(paths[i] + length - strlen(end), end) == 0)
            return paths[i];
    }
    return NULL;
}

static void setup(void)
{
    claim_count = path_count = 0;
    ck_assert_int_eq(nftw(TEST_SOURCE_DIR "/tests", path_keep, 16, FTW_PHYS), 0);
}

START_TEST(test_every_row_has_its_test)
{
    int rows = table_read();
    ck_assert_int_ge(rows, ROWS_LEAST);
    for (int i = 0; i < claim_count; i++) {
        const char *path = path_of(claims[i].file);
        ck_assert_msg(path != NULL, "there is no test_%s.c", claims[i].file);
        char *text = man_file_read(path + sizeof(TEST_SOURCE_DIR)), begins[128];
        snprintf(begins, sizeof(begins), "START_TEST(%s)", claims[i].test);
        ck_assert_msg(strstr(text, begins) != NULL, "%s has no %s", path, claims[i].test);
        free(text);
    }
}
END_TEST

static bool is_claimed(const char *path, const char *test)
{
    for (int i = 0; i < claim_count; i++) {
        const char *its_path = path_of(claims[i].file);
        if (its_path && strcmp(its_path, path) == 0 && strcmp(claims[i].test, test) == 0)
            return true;
    }
    return false;
}

START_TEST(test_every_attack_has_its_row)
{
    int attacks = 0;
    table_read();
    for (int i = 0; i < path_count; i++) {
        if (!strstr(paths[i], "/e2e/attacks/"))
            continue;
        char *text = man_file_read(paths[i] + sizeof(TEST_SOURCE_DIR)), name[96];
        for (char *at = text; (at = strstr(at, "START_TEST(")) != NULL; at++) {
            ck_assert_int_eq(sscanf(at, "START_TEST(%95[a-z0-9_])", name), 1);
            ck_assert_msg(is_claimed(paths[i], name), "%s: %s is not in SECURITY.md", paths[i],
                          name);
            attacks++;
        }
        free(text);
    }
    ck_assert_int_ge(attacks, 10);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("security");
    TCase *cases = tcase_create("security");
    tcase_add_checked_fixture(cases, setup, NULL);
    tcase_add_test(cases, test_every_row_has_its_test);
    tcase_add_test(cases, test_every_attack_has_its_row);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
