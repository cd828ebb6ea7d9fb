/* That shoal(3) says what worker/shoal.h declares: every function with its prototype and a
 * description, every field of a structure, every constant, every error with its number, and the
 * variables of the environment that the library reads. */
#include <ctype.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/doc/man_page.h"
#include "tests/lib/suite.h"

#define TEXT_BYTES 4096

/* --- the header ------------------------------------------------------------------------------- */

/* The header without comments, blanks in a row as one; the caller frees it. */
static char *header_plain(const char *header)
{
    char *plain = malloc(strlen(header) + 1);
    size_t used = 0;
    ck_assert_ptr_nonnull(plain);
    for (const char *at = header; *at; at++) {
        if (strncmp(at, "/*", 2) == 0) {
            at = strstr(at, "*/");
            ck_assert_ptr_nonnull(at);
            at++;
        } else if (!isspace((unsigned char)*at)) {
            plain[used++] = *at;
        } else if (used > 0 && plain[used - 1] != ' ') {
            plain[used++] = ' ';
        }
    }
    plain[used] = '\0';
    return plain;
}

/* "int shoal_close(shoal_job *job)" of all that has SHOAL_API before it. */
static void header_functions(const char *plain, struct man_words *functions)
{
    static const char mark[] = " SHOAL_API ";
    for (const char *at = plain; (at = strstr(at, mark));) {
        at += sizeof(mark) - 1;
        const char *end = strchr(at, ';');
        ck_assert_ptr_nonnull(end);
        if (strncmp(at, "__attribute__", 13) != 0 && *at != '#')
            man_words_add(functions, "%.*s", (int)(end - at), at);
    }
}

/* The members of `kind NAME {`, which `separator` ends; NAME is set to the kind's name. Returns
 * where to look for the next one, or NULL. */
static const char *header_members(const char *plain, const char *kind, char separator,
                                  char name[64], struct man_words *members)
{
    const char *at = plain, *open;
    size_t length = strlen(kind);
    for (;; at++) {
        at = strstr(at, kind);
        if (!at)
            return NULL;
        open = at + length + strcspn(at + length, " {;),*");
        if (strncmp(open, " {", 2) == 0)
            break;
    }
    snprintf(name, 64, "%.*s", (int)(open - at), at);
    const char *end = strchr(open, '}');
    ck_assert_ptr_nonnull(end);
    for (at = open + 2; at < end;) {
        at += strspn(at, " ");
        size_t bytes = strcspn(at, (char[]){separator, '}', '\0'});
        if (bytes > 0 && at < end)
            man_words_add(members, "%.*s", (int)bytes, at);
        at += bytes + 1;
    }
    return end;
}

/* --- the page --------------------------------------------------------------------------------- */

/* "int shoal_close(shoal_job *job)" of a type and a list of name and arguments. */
static void prototype_add(struct man_words *functions, const char *type,
                          struct man_words *arguments)
{
    char text[TEXT_BYTES];
    size_t length = strlen(type);
    size_t used =
        (size_t)snprintf(text, sizeof(text), "%s%s%s(", type,
                         length > 0 && type[length - 1] == '*' ? "" : " ", arguments->words[0]);
    for (int i = 1; i < arguments->count; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i > 1 ? ", " : "",
                                 arguments->words[i]);
    man_words_add(functions, "%s)", text);
    man_words_clear(arguments);
}

/* The prototypes of SYNOPSIS: the type of .Ft, then name and arguments of .Fn, or of .Fo to .Fc. */
static void page_functions(const struct man_page *page, struct man_words *functions)
{
    struct man_words arguments = {.count = 0};
    int begin, end;
    const char *type = "";
    ck_assert(man_page_section(page, "SYNOPSIS", &begin, &end));
    for (int i = begin; i < end; i++) {
        const char *line = page->lines[i];
        bool whole = strncmp(line, ".Fn ", 4) == 0;
        if (strncmp(line, ".Ft ", 4) == 0)
            type = line + 4;
        else if (whole || strncmp(line, ".Fo ", 4) == 0 || strncmp(line, ".Fa ", 4) == 0)
            man_line_arguments(line, &arguments);
        if (whole || strcmp(line, ".Fc") == 0)
            prototype_add(functions, type, &arguments);
    }
}

static bool page_has_line(const struct man_page *page, const char *section, const char *start)
{
    int begin, end;
    ck_assert_msg(man_page_section(page, section, &begin, &end), "no section %s", section);
    size_t length = strlen(start);
    for (int i = begin; i < end; i++)
        if (strncmp(page->lines[i], start, length) == 0 &&
            (page->lines[i][length] == '\0' || page->lines[i][length] == ' '))
            return true;
    return false;
}

/* List what the page gives as the fields of a structure: the items with .Fa from where .Vt names
 * it. */
static void page_fields(const struct man_page *page, const char *structure,
                        struct man_words *fields)
{
    char wanted[128];
    int i = 0;
    size_t length = (size_t)snprintf(wanted, sizeof(wanted), ".Vt %s", structure);
    while (i < page->count && strncmp(page->lines[i], wanted, length) != 0)
        i++;
    while (i < page->count && strncmp(page->lines[i], ".Bl", 3) != 0)
        i++;
    for (; i < page->count && strcmp(page->lines[i], ".El") != 0; i++) {
        char plain[MAN_PLAIN_BYTES];
        if (strncmp(page->lines[i], ".It Fa ", 7) != 0)
            continue;
        man_line_plain(page->lines[i], plain);
        man_words_add(fields, "%s", plain);
    }
}

/* --- tests ------------------------------------------------------------------------------------ */

static void assert_no_difference(char *difference)
{
    ck_assert_msg(*difference == '\0', "%s", difference);
    free(difference);
}

static char *header_read(void)
{
    char *header = man_file_read("worker/shoal.h"), *plain = header_plain(header);
    free(header);
    return plain;
}

static int word_compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void words_sort(struct man_words *words)
{
    qsort(words->words, (size_t)words->count, sizeof(words->words[0]), word_compare);
}

static char *functions_compare(const char *plain, const struct man_page *page)
{
    struct man_words declared = {.count = 0}, shown = {.count = 0};
    header_functions(plain, &declared);
    page_functions(page, &shown);
    words_sort(&declared); /* the page has an order of its own */
    words_sort(&shown);
    char *difference = man_words_compare("the header", &declared, "the page", &shown);
    if (declared.count == 0 && !*difference) {
        free(difference);
        difference = strdup("there are none");
    }
    man_words_clear(&declared);
    man_words_clear(&shown);
    return difference;
}

START_TEST(test_prototypes)
{
    struct man_page page;
    char *plain = header_read();
    man_page_read(&page, "shoal.3");
    assert_no_difference(functions_compare(plain, &page));
    man_page_clear(&page);
    free(plain);
}
END_TEST

START_TEST(test_every_function_is_described)
{
    struct man_page page;
    struct man_words declared = {.count = 0};
    char *plain = header_read();
    man_page_read(&page, "shoal.3");
    header_functions(plain, &declared);
    for (int i = 0; i < declared.count; i++) {
        char name[128], line[160], item[160];
        const char *begin = strstr(declared.words[i], "shoal_");
        while (strchr(begin, '(') > strstr(begin + 1, "shoal_") && strstr(begin + 1, "shoal_"))
            begin = strstr(begin + 1, "shoal_");
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(begin, "("), begin);
        snprintf(line, sizeof(line), ".Fn %s", name);
        snprintf(item, sizeof(item), ".It Fn %s", name);
        ck_assert_msg(page_has_line(&page, "DESCRIPTION", line) ||
                          page_has_line(&page, "DESCRIPTION", item),
                      "DESCRIPTION says nothing of %s", name);
    }
    man_words_clear(&declared);
    man_page_clear(&page);
    free(plain);
}
END_TEST

START_TEST(test_structures)
{
    struct man_page page;
    char *plain = header_read();
    man_page_read(&page, "shoal.3");
    int found = 0;
    char name[64];
    struct man_words declared = {.count = 0}, shown = {.count = 0};
    for (const char *at = plain; (at = header_members(at, "struct shoal_", ';', name, &declared));
         found++) {
        page_fields(&page, name, &shown);
        char *difference = man_words_compare(name, &declared, "the page", &shown);
        ck_assert_msg(*difference == '\0', "%s: %s", name, difference);
        free(difference);
        man_words_clear(&declared);
        man_words_clear(&shown);
    }
    ck_assert_int_eq(found, 6);
    man_page_clear(&page);
    free(plain);
}
END_TEST

/* Constants stand after .Dv; errors are the items of ERRORS, with their numbers. */
START_TEST(test_constants_and_errors)
{
    struct man_page page;
    char *plain = header_read(), name[64];
    struct man_words members = {.count = 0}, errors = {.count = 0}, items = {.count = 0};
    man_page_read(&page, "shoal.3");
    int constants = 0;
    for (const char *at = plain; (at = header_members(at, "enum shoal_", ',', name, &members));) {
        for (int i = 0; i < members.count; i++) {
            char constant[64], line[80];
            int number;
            ck_assert_int_eq(sscanf(members.words[i], "%63[A-Z0-9_] = %d", constant, &number), 2);
            if (strcmp(name, "enum shoal_result") == 0 && number < 0) {
                man_words_add(&errors, "%s (%d)", constant, number);
                continue;
            }
            snprintf(line, sizeof(line), ".Dv %s", constant);
            ck_assert_msg(page_has_line(&page, "DESCRIPTION", line), "nothing of %s", constant);
            constants++;
        }
        man_words_clear(&members);
    }
    man_page_items(&page, "ERRORS", "Er", &items);
    assert_no_difference(man_words_compare("the header", &errors, "the page", &items));
    ck_assert_int_ge(errors.count, 12);
    ck_assert_int_ge(constants, 19);
    man_words_clear(&errors);
    man_words_clear(&items);
    man_page_clear(&page);
    free(plain);
}
END_TEST

START_TEST(test_environment)
{
    struct man_page page;
    struct man_words named = {.count = 0}, used = {.count = 0};
    glob_t files;
    man_page_read(&page, "shoal.3");
    man_page_items(&page, "ENVIRONMENT", "Ev", &named);
    ck_assert_int_eq(glob(TEST_SOURCE_DIR "/worker/api/*.c", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        char *source = man_file_read(files.gl_pathv[i] + sizeof(TEST_SOURCE_DIR));
        man_source_variables(source, &used);
        free(source);
    }
    globfree(&files);
    words_sort(&named);
    words_sort(&used);
    ck_assert_int_ge(used.count, 9);
    assert_no_difference(man_words_compare("the page", &named, "the library", &used));
    man_words_clear(&named);
    man_words_clear(&used);
    man_page_clear(&page);
}
END_TEST

/* The page's example is the program that is built, whose output the README's test looks at. */
START_TEST(test_example)
{
    struct man_page page;
    char *source = man_file_read("worker/examples/first.c"), *at = source;
    int begin, end, i;
    man_page_read(&page, "shoal.3");
    ck_assert(man_page_section(&page, "EXAMPLES", &begin, &end));
    for (i = begin; i < end && strncmp(page.lines[i], ".Bd", 3) != 0; i++)
        ;
    for (i++; i < end && strcmp(page.lines[i], ".Ed") != 0; i++) {
        char line[TEXT_BYTES];
        size_t used = 0;
        for (const char *c = page.lines[i]; *c; c++) {
            line[used++] = *c;
            c += c[0] == '\\' && c[1] == 'e';
        }
        line[used] = '\0';
        char *wanted = strsep(&at, "\n");
        ck_assert_str_eq(line, wanted ? wanted : "(the end)");
    }
    ck_assert_msg(!at || *at == '\0', "the page lacks: %s", at);
    man_page_clear(&page);
    free(source);
}
END_TEST

/* --- that the comparison can fail ------------------------------------------------------------- */

START_TEST(test_differences_are_seen)
{
    static const char header[] = "#define SHOAL_API __attribute__((visibility(\"default\")))\n"
                                 "/* one; */\nSHOAL_API int shoal_one(const int *ranks,\n"
                                 "                  void (*f)(int a, int b));\n"
                                 "SHOAL_API void *shoal_two(void); /* SHOAL_API no; */\n";
    static const struct {
        const char *mdoc, *difference;
    } cases[] = {
        {".Sh SYNOPSIS\n.Ft int\n.Fn shoal_one \"const int *ranks\" \"void (*f)(int a, int b)\"\n"
         ".Ft void *\n.Fn shoal_two void\n",
         ""},
        {".Sh SYNOPSIS\n.Ft int\n.Fo shoal_one\n.Fa \"const int *ranks\"\n"
         ".Fa \"void (*f)(int a, int b)\"\n.Fc\n.Ft void *\n.Fn shoal_two void\n",
         ""},
        {".Sh SYNOPSIS\n.Ft int\n.Fn shoal_one \"const int *ranks\" \"void (*f)(int a, int b)\"\n",
         "the header has 'void *shoal_two(void)', the page has not\n"},
        {".Sh SYNOPSIS\n.Ft void *\n.Fn shoal_two void\n"
         ".Ft int\n.Fn shoal_one \"int *ranks\" \"void (*f)(int a, int b)\"\n",
         "the header has 'int shoal_one(const int *ranks, void (*f)(int a, int b))', the page has "
         "not\nthe page has 'int shoal_one(int *ranks, void (*f)(int a, int b))', the header has "
         "not\n"},
    };
    struct man_page page;
    char *plain = header_plain(header);
    man_page_parse(&page, cases[_i].mdoc);
    char *difference = functions_compare(plain, &page);
    ck_assert_str_eq(difference, cases[_i].difference);
    free(difference);
    man_page_clear(&page);
    free(plain);
}
END_TEST

START_TEST(test_members_are_read)
{
    struct man_words members = {.count = 0};
    char name[64];
    const char *at = header_members("typedef struct shoal_job shoal_job; int f(struct shoal_b *b);"
                                    " struct shoal_b { size_t size; const char *job; }; x",
                                    "struct shoal_", ';', name, &members);
    ck_assert_ptr_nonnull(at);
    ck_assert_str_eq(name, "struct shoal_b");
    ck_assert_int_eq(members.count, 2);
    ck_assert_str_eq(members.words[1], "const char *job");
    ck_assert_ptr_null(header_members(at, "struct shoal_", ';', name, &members));
    man_words_clear(&members);
    ck_assert_ptr_nonnull(
        header_members(" enum shoal_e { A = 0, B = -1, };", "enum shoal_", ',', name, &members));
    ck_assert_int_eq(members.count, 2);
    ck_assert_str_eq(members.words[1], "B = -1");
    man_words_clear(&members);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("man_library");
    TCase *checks = tcase_create("checks");
    tcase_add_loop_test(checks, test_differences_are_seen, 0, 4);
    tcase_add_test(checks, test_members_are_read);
    suite_add_tcase(suite, checks);
    TCase *page = tcase_create("page");
    tcase_add_test(page, test_prototypes);
    tcase_add_test(page, test_every_function_is_described);
    tcase_add_test(page, test_structures);
    tcase_add_test(page, test_constants_and_errors);
    tcase_add_test(page, test_environment);
    tcase_add_test(page, test_example);
    suite_add_tcase(suite, page);
    return suite_main(suite);
}
