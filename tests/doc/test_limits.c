/* This test holds that SECURITY.md's tables of limits are whole: each limit of the sources and of
 * the configuration stands in one, with whose it is. A limit has MAX or MOST in its name. */
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config/config_table.h"
#include "tests/lib/doc/man_page.h"
#include "tests/lib/suite.h"

#define SHARED "| limit | of what | whose | what one may have |"
#define SINGLE "| of whom | limits |"
#define NAMES 512
#define CELLS 4

static char names[NAMES][64]; /* of the sources' limits */
static int name_count;

/* --- the sources ------------------------------------------------------------------------------ */

static bool is_limit(const char *name)
{
    char copy[64], *rest = NULL;
    snprintf(copy, sizeof(copy), "%s", name);
    for (char *part = strtok_r(copy, "_", &rest); part; part = strtok_r(NULL, "_", &rest)) {
        if (strcmp(part, "MAX") == 0 || strcmp(part, "MOST") == 0)
            return true;
    }
    return false;
}

static void source_read(const char *text)
{
    static const char begins[] = "#define ";
    for (const char *at = strstr(text, begins); at; at = strstr(at + 1, begins)) {
        char name[64];
        if ((at != text && at[-1] != '\n') || sscanf(at, "#define %63[A-Z0-9_]", name) != 1 ||
            !is_limit(name))
            continue;
        ck_assert_int_lt(name_count, NAMES);
        snprintf(names[name_count++], sizeof(names[0]), "%s", name);
    }
}

static int source_visit(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status, (void)walk;
    size_t length = strlen(path);
    if (type != FTW_F || path[length - 2] != '.' || !strchr("ch", path[length - 1]) ||
        strstr(path, "/server/shoalctl/"))
        return 0;
    char *text = man_file_read(path + sizeof(TEST_SOURCE_DIR));
    source_read(text);
    free(text);
    return 0;
}

static void sources_read(void)
{
    name_count = 0;
    ck_assert_int_eq(nftw(TEST_SOURCE_DIR "/server", source_visit, 16, FTW_PHYS), 0);
    ck_assert_int_eq(nftw(TEST_SOURCE_DIR "/common", source_visit, 16, FTW_PHYS), 0);
}

/* --- the tables ------------------------------------------------------------------------------- */

/* The rows of the table with this head, the caller's. */
static char *table_of(const char *paper, const char *head)
{
    const char *table = strstr(paper, head);
    ck_assert_msg(table != NULL, "no table: %s", head);
    for (int line = 0; line < 2; line++) /* the head and the rule */
        table += strcspn(table, "\n") + 1;
    char *copy = strdup(table);
    ck_assert_ptr_nonnull(copy);
    char *end = strstr(copy, "\n\n");
    if (end)
        *end = '\0';
    return copy;
}

static void trim(char *cell)
{
    size_t length = strlen(cell), from = strspn(cell, " ");
    while (length > from && cell[length - 1] == ' ')
        length--;
    memmove(cell, cell + from, length - from);
    cell[length - from] = '\0';
}

/* Split the row "| a | b |" into its cells; return how many. */
static int cells_of(const char *row, char cells[CELLS][256])
{
    int count = 0;
    for (const char *at = row + strcspn(row, "|"); *at == '|' && count < CELLS; count++) {
        size_t length = strcspn(at + 1, "|");
        if (at[1 + length] == '\0')
            break;
        snprintf(cells[count], 256, "%.*s", (int)length, at + 1);
        trim(cells[count]);
        at += 1 + length;
    }
    return count;
}

static bool is_owner(const char *word)
{
    static const char *const owners[] = {"user", "job", "rank", "node", "address", "connection"};
    for (size_t i = 0; i < sizeof(owners) / sizeof(owners[0]); i++) {
        if (strcmp(word, owners[i]) == 0)
            return true;
    }
    return false;
}

/* Return what is wrong with a row of shared limits; NULL: nothing is. */
static const char *row_problem(const char *row)
{
    char cells[CELLS][256], *rest = NULL;
    if (cells_of(row, cells) != CELLS)
        return "it has not four cells";
    if (cells[1][0] == '\0')
        return "it does not say of what";
    if (cells[2][0] == '\0')
        return "it has no owner";
    for (char *word = strtok_r(cells[2], ", ", &rest); word; word = strtok_r(NULL, ", ", &rest)) {
        if (!is_owner(word))
            return "it has an owner that nobody knows";
    }
    return cells[3][0] == '\0' ? "it does not say what one may have" : NULL;
}

static bool is_named(const char *table, const char *name)
{
    char quoted[96];
    snprintf(quoted, sizeof(quoted), "`%.80s`", name);
    return strstr(table, quoted) != NULL;
}

static bool is_source_name(const char *name)
{
    for (int i = 0; i < name_count; i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return false;
}

static char *paper, *shared, *single;

static void setup(void)
{
    paper = man_file_read("SECURITY.md");
    shared = table_of(paper, SHARED);
    single = table_of(paper, SINGLE);
    sources_read();
}

static void teardown(void)
{
    free(single);
    free(shared);
    free(paper);
}

START_TEST(test_every_limit_has_its_owner)
{
    char *rest = NULL;
    int rows = 0;
    for (char *row = strtok_r(shared, "\n", &rest); row; row = strtok_r(NULL, "\n", &rest)) {
        const char *problem = row_problem(row);
        ck_assert_msg(problem == NULL, "%s: %s", problem, row);
        rows++;
    }
    ck_assert_int_ge(rows, 30);
    for (char *row = strtok_r(single, "\n", &rest); row; row = strtok_r(NULL, "\n", &rest)) {
        char cells[CELLS][256];
        ck_assert_msg(cells_of(row, cells) == 2 && cells[0][0] && cells[1][0], "%s", row);
    }
}
END_TEST

START_TEST(test_every_limit_of_the_sources_is_there)
{
    ck_assert_int_ge(name_count, 40);
    for (int i = 0; i < name_count; i++)
        ck_assert_msg(is_named(shared, names[i]) || is_named(single, names[i]),
                      "%s is in no table of SECURITY.md (Limits): whose is what it counts?",
                      names[i]);
}
END_TEST

START_TEST(test_every_limit_of_the_configuration_is_there)
{
    int keys = 0;
    for (size_t i = 0; i < config_section_count; i++) {
        const struct config_section *section = &config_sections[i];
        if (strcmp(section->name, "limits") != 0 && strcmp(section->name, "replay") != 0)
            continue;
        for (size_t k = 0; k < section->key_count; k++) {
            char name[96];
            snprintf(name, sizeof(name), "%s.%s", section->name, section->keys[k].name);
            ck_assert_msg(is_named(shared, name), "%s is not in SECURITY.md's table of limits",
                          name);
            keys++;
        }
    }
    ck_assert_int_ge(keys, 10);
}
END_TEST

/* Each name in the tables stands in the sources. */
START_TEST(test_every_name_is_a_limit)
{
    const char *const tables[] = {shared, single};
    for (int i = 0; i < 2; i++) {
        for (const char *at = strchr(tables[i], '`'); at; at = strchr(at + 1, '`')) {
            char name[64];
            if (sscanf(at, "`%63[A-Z0-9_]`", name) == 1 && at[strlen(name) + 1] == '`')
                ck_assert_msg(is_source_name(name), "%s is no limit of the sources", name);
        }
    }
}
END_TEST

/* The test sees what is wrong. */
START_TEST(test_what_is_missing_is_seen)
{
    static const struct {
        const char *row, *problem;
    } cases[] = {
        {"| `A_MAX` | jobs | user | half |", NULL},
        {"| `A_MAX` | jobs | user, node | half |", NULL},
        {"| `A_MAX` | jobs | | half |", "no owner"},
        {"| `A_MAX` | jobs | all | half |", "nobody knows"},
        {"| `A_MAX` | jobs | user, all | half |", "nobody knows"},
        {"| `A_MAX` | | user | half |", "of what"},
        {"| `A_MAX` | jobs | user | |", "may have"},
        {"| `A_MAX` | jobs | user |", "four cells"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *problem = row_problem(cases[i].row);
        ck_assert_msg(cases[i].problem ? problem && strstr(problem, cases[i].problem) : !problem,
                      "%s: %s", cases[i].row, problem ? problem : "nothing");
    }
    name_count = 0;
    source_read("#define A_MAX 1\n#define MOST 2\n#define MAXIMAL 3\n #define B_MAX 4\n"
                "/* #define C_MAX */\n#define D_MAX_BYTES 5\n#define E_MOST(x) 6\n");
    ck_assert_int_eq(name_count, 4);
    ck_assert(is_source_name("MOST") && is_source_name("D_MAX_BYTES"));
    ck_assert(!is_named("| `AB_MAX` |", "B_MAX"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("limits");
    TCase *cases = tcase_create("limits");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, test_every_limit_has_its_owner);
    tcase_add_test(cases, test_every_limit_of_the_sources_is_there);
    tcase_add_test(cases, test_every_limit_of_the_configuration_is_there);
    tcase_add_test(cases, test_every_name_is_a_limit);
    tcase_add_test(cases, test_what_is_missing_is_seen);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
