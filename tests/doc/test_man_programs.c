/* That the manual pages of the programs say what the programs do: options with their arguments,
 * exit statuses and environment, from what --help prints and from the sources. And that every page
 * has its sections, names itself, and points to pages that there are. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config/config.h"
#include "tests/lib/cluster.h"
#include "tests/lib/config_assert.h"
#include "tests/lib/doc/man_page.h"
#include "tests/lib/suite.h"

#define COLUMNS_MAX 80

static const struct {
    const char *name;
    const char *page;
    const char *options;    /* the file with its struct option and its getopt_long */
    const char *sources[7]; /* where it reads and sets the environment */
} programs[] = {
    {"shoald",
     "shoald.8",
     "server/shoald.c",
     {"server/shoald.c", "common/transport/transport.c", "common/memory/topology.c"}},
    {"shoalctl",
     "shoalctl.1",
     "server/shoalctl/shoalctl.c",
     {"server/shoalctl/shoalctl.c", "server/shoalctl/shoalctl_watch.c"}},
    {"shoalrun",
     "shoalrun.1",
     "worker/programs/shoalrun/launcher.c",
     {"worker/programs/shoalrun/shoalrun.c", "worker/programs/shoalrun/launcher.c",
      "worker/programs/shoalrun/embedded.c", "worker/programs/shoalrun/nodes.c",
      "worker/programs/shoalrun/nodes_address.c", "worker/programs/shoalrun/run_secret.c"}},
    {"shoalperf",
     "shoalperf.1",
     "worker/programs/shoalperf/perf_options.c",
     {"worker/programs/shoalperf/shoalperf.c"}},
};
#define PROGRAM_COUNT ((int)(sizeof(programs) / sizeof(programs[0])))

static const char *const pages[] = {"shoald.8",    "shoalctl.1",    "shoalrun.1",
                                    "shoalperf.1", "shoald.json.5", "shoal.3"};
#define PAGE_COUNT ((int)(sizeof(pages) / sizeof(pages[0])))

/* Pages of other packages that ours may point to. */
static const char *const strangers[] = {"fork 2", "execve 2", "sd_watchdog_enabled 3", "fabric 7"};

/* Whether there is the page of a "NAME SECTION". */
static bool is_known_page(const char *name)
{
    for (size_t i = 0; i < sizeof(strangers) / sizeof(strangers[0]); i++)
        if (strcmp(name, strangers[i]) == 0)
            return true;
    for (int i = 0; i < PAGE_COUNT; i++) {
        size_t length = strlen(pages[i]) - 2;
        if (strncmp(name, pages[i], length) == 0 && name[length] == ' ' &&
            strcmp(name + length + 1, pages[i] + length + 1) == 0)
            return true;
    }
    return false;
}

/* --- what --help says ------------------------------------------------------------------------- */

/* Return what the program prints; it ends with 0 and says nothing else. The caller frees it. */
static char *program_output(const char *name, const char *option)
{
    char path[1024];
    snprintf(path, sizeof(path), CLUSTER_BIN "%s", name);
    const char *argv[] = {path, option, NULL};
    struct process *process = process_run(argv);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    ck_assert_str_eq(process_errors(process), "");
    char *text = strdup(process_output(process));
    process_free(process);
    return text;
}

/* List the beginnings of the lines that are indented by two spaces, up to two spaces or the end:
 * options from the heading "Options:" on, others below `heading` up to an empty line. */
static void help_terms(const char *help, const char *heading, bool options, struct man_words *terms)
{
    const char *line = strstr(help, heading);
    ck_assert_msg(line != NULL, "no '%s' in:\n%s", heading, help);
    for (line = strchr(line, '\n'); line && line[1]; line = strchr(line + 1, '\n')) {
        const char *term = line + 1;
        if (!options && *term == '\n')
            return;
        if (strncmp(term, "  ", 2) != 0 || term[2] == ' ' || (options && term[2] != '-'))
            continue;
        term += 2;
        size_t length = strcspn(term, "\n");
        for (size_t i = 0; i + 1 < length; i++)
            if (term[i] == ' ' && term[i + 1] == ' ')
                length = i;
        man_words_add(terms, "%.*s", (int)length, term);
    }
}

/* "" or what differs between the help's terms and the page's items; the caller frees it. */
static char *terms_compare(const char *help, const char *heading, bool options,
                           const struct man_page *page, const char *section, const char *macro)
{
    struct man_words terms = {.count = 0}, items = {.count = 0};
    help_terms(help, heading, options, &terms);
    man_page_items(page, section, macro, &items);
    char *difference = man_words_compare("--help", &terms, "the page", &items);
    if (terms.count == 0 && !*difference) {
        free(difference);
        difference = strdup("there are none");
    }
    man_words_clear(&terms);
    man_words_clear(&items);
    return difference;
}

static void assert_no_difference(const char *page, char *difference)
{
    ck_assert_msg(*difference == '\0', "%s: %s", page, difference);
    free(difference);
}

START_TEST(test_options_are_those_of_the_page)
{
    struct man_page page;
    char *help = program_output(programs[_i].name, "--help");
    man_page_read(&page, programs[_i].page);
    assert_no_difference(programs[_i].page,
                         terms_compare(help, "Options:", true, &page, "OPTIONS", "Fl"));
    assert_no_difference(programs[_i].page,
                         terms_compare(help, "Exit status:", false, &page, "EXIT STATUS", ""));
    if (strstr(help, "\nCommands:\n"))
        assert_no_difference(programs[_i].page,
                             terms_compare(help, "Commands:", false, &page, "DESCRIPTION", "Cm"));
    man_page_clear(&page);
    free(help);
}
END_TEST

/* Every option of OPTIONS stands in SYNOPSIS, by one of its names. */
START_TEST(test_synopsis_has_every_option)
{
    struct man_page page;
    struct man_words shown = {.count = 0}, items = {.count = 0};
    int begin, end;
    man_page_read(&page, programs[_i].page);
    man_page_items(&page, "OPTIONS", "Fl", &items);
    ck_assert(man_page_section(&page, "SYNOPSIS", &begin, &end));
    for (int i = begin; i < end; i++) {
        char plain[MAN_PLAIN_BYTES];
        man_line_plain(page.lines[i], plain);
        man_words_split(&shown, plain, " []|");
    }
    for (int i = 0; i < items.count; i++) {
        struct man_words names = {.count = 0};
        bool there = false;
        man_words_split(&names, items.words[i], " ,");
        for (int n = 0; n < names.count; n++)
            there = there || (names.words[n][0] == '-' && man_words_have(&shown, names.words[n]));
        man_words_clear(&names);
        ck_assert_msg(there, "%s: SYNOPSIS has no %s", programs[_i].page, items.words[i]);
    }
    man_words_clear(&items);
    man_words_clear(&shown);
    man_page_clear(&page);
}
END_TEST

START_TEST(test_form_of_help)
{
    const char *name = programs[_i].name;
    char wanted[64], *text = program_output(name, "--help"), *other = program_output(name, "-h");
    ck_assert_str_eq(text, other);
    free(other);
    snprintf(wanted, sizeof(wanted), "%s %s\n", name, SHOAL_VERSION);
    other = program_output(name, "--version");
    ck_assert_str_eq(other, wanted);
    free(other);
    ck_assert_int_eq(strncmp(text, "usage: ", 7), 0);
    const char *last = "";
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) {
        ck_assert_msg(strlen(line) <= COLUMNS_MAX, "%s: more than 80 columns: %s", name, line);
        if (*line)
            last = line;
    }
    snprintf(wanted, sizeof(wanted), "Read on: %s(%s", name, strchr(programs[_i].page, '.') + 1);
    ck_assert_msg(strncmp(last, wanted, strlen(wanted)) == 0, "the last line is '%s'", last);
    struct man_words pointed = {.count = 0};
    man_words_split(&pointed, strchr(last, ':') + 2, ", ");
    for (int i = 0; i < pointed.count; i++) {
        char page[64];
        const char *word = pointed.words[i], *open = strchr(word, '(');
        ck_assert_msg(open != NULL, "%s points to %s", name, word);
        snprintf(page, sizeof(page), "%.*s %.1s", (int)(open - word), word, open + 1);
        ck_assert_msg(is_known_page(page), "%s points to %s", name, page);
    }
    man_words_clear(&pointed);
    free(text);
}
END_TEST

/* --- what the sources say --------------------------------------------------------------------- */

/* The options of a source's struct option, as "--name", "--name ARG" or "--name [ARG]". */
static void source_options(const char *text, struct man_words *options)
{
    for (const char *at = text; (at = strstr(at, "_argument, NULL,")); at++) {
        const char *line = at;
        while (line > text && line[-1] != '\n')
            line--;
        char name[64], kind[32];
        ck_assert_msg(sscanf(line, " {\"%63[a-z_-]\", %31[a-z]_argument", name, kind) == 2, "%.60s",
                      line);
        man_words_add(options, "--%s%s", name,
                      strcmp(kind, "no") == 0         ? ""
                      : strcmp(kind, "required") == 0 ? " ARG"
                                                      : " [ARG]");
    }
}

/* The letters of a source's getopt_long: "-b ARG". */
static void source_letters(const char *text, struct man_words *letters)
{
    const char *at = strstr(text, "getopt_long(argc, argv, \"");
    ck_assert_ptr_nonnull(at);
    for (at = strchr(at, '"') + 1; *at != '"'; at++)
        if (isalpha((unsigned char)*at))
            man_words_add(letters, "-%c%s", *at, at[1] == ':' ? " ARG" : "");
}

/* List the names and letters of an item of the page: names with "ARG" for whatever the argument is
 * called. */
static void item_names(const char *item, struct man_words *options, struct man_words *letters)
{
    struct man_words words = {.count = 0};
    const char *argument = "";
    const char *space = strrchr(item, ' ');
    if (space && space[1] != '-')
        argument = space[1] == '[' ? " [ARG]" : " ARG";
    man_words_split(&words, item, " ,");
    for (int i = 0; i < words.count; i++) {
        const char *word = words.words[i];
        if (word[0] == '-')
            man_words_add(word[1] == '-' ? options : letters, "%s%s", word, argument);
    }
    man_words_clear(&words);
}

static int word_compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void words_sort(struct man_words *words)
{
    qsort(words->words, (size_t)words->count, sizeof(words->words[0]), word_compare);
}

START_TEST(test_options_are_those_of_the_source)
{
    struct man_page page;
    struct man_words items = {.count = 0}, named = {.count = 0}, taken = {.count = 0};
    struct man_words letters = {.count = 0}, taken_letters = {.count = 0};
    char *source = man_file_read(programs[_i].options);
    man_page_read(&page, programs[_i].page);
    man_page_items(&page, "OPTIONS", "Fl", &items);
    for (int i = 0; i < items.count; i++)
        item_names(items.words[i], &named, &letters);
    source_options(source, &taken);
    source_letters(source, &taken_letters);
    ck_assert_int_gt(taken.count, 3);
    struct man_words *const all[] = {&named, &taken, &letters, &taken_letters};
    for (int i = 0; i < 4; i++)
        words_sort(all[i]);
    assert_no_difference(programs[_i].page,
                         man_words_compare("the page", &named, "the source", &taken));
    assert_no_difference(programs[_i].page,
                         man_words_compare("the page", &letters, "the source", &taken_letters));
    for (int i = 0; i < 4; i++)
        man_words_clear(all[i]);
    man_words_clear(&items);
    man_page_clear(&page);
    free(source);
}
END_TEST

START_TEST(test_environment)
{
    struct man_page page;
    struct man_words items = {.count = 0}, named = {.count = 0}, used = {.count = 0};
    man_page_read(&page, programs[_i].page);
    man_page_items(&page, "ENVIRONMENT", "Ev", &items);
    for (int i = 0; i < items.count; i++)
        man_words_split(&named, items.words[i], ", ");
    for (int i = 0; i < 7 && programs[_i].sources[i]; i++) {
        char *source = man_file_read(programs[_i].sources[i]);
        man_source_variables(source, &used);
        free(source);
    }
    ck_assert_int_gt(used.count, 0);
    words_sort(&named);
    words_sort(&used);
    assert_no_difference(programs[_i].page,
                         man_words_compare("the page", &named, "the source", &used));
    man_words_clear(&items);
    man_words_clear(&named);
    man_words_clear(&used);
    man_page_clear(&page);
}
END_TEST

/* --- every page ------------------------------------------------------------------------------- */

START_TEST(test_sections)
{
    static const char *const wanted[] = {"NAME",        "SYNOPSIS",    "DESCRIPTION",
                                         "OPTIONS",     "ENVIRONMENT", "FILES",
                                         "EXIT STATUS", "EXAMPLES",    "SEE ALSO"};
    const char *name = pages[_i];
    char title[64];
    struct man_page page;
    int begin, end;
    man_page_read(&page, name);
    const char *dot = strrchr(name, '.');
    bool program = *(dot + 1) == '1' || *(dot + 1) == '8';
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        bool of_programs = strcmp(wanted[i], "OPTIONS") == 0 ||
                           strcmp(wanted[i], "EXIT STATUS") == 0 ||
                           strcmp(wanted[i], "ENVIRONMENT") == 0;
        bool without = (of_programs && !program) ||
                       (strcmp(wanted[i], "SYNOPSIS") == 0 && *(dot + 1) == '5') ||
                       (strcmp(wanted[i], "FILES") == 0 && strcmp(name, "shoalperf.1") == 0);
        ck_assert_msg(without || man_page_section(&page, wanted[i], &begin, &end),
                      "%s: no section %s", name, wanted[i]);
    }
    snprintf(title, sizeof(title), ".Nm %.*s", (int)(dot - name), name);
    ck_assert(man_page_section(&page, "NAME", &begin, &end));
    ck_assert_str_eq(page.lines[begin], title);
    snprintf(title, sizeof(title), ".Dt %.*s %s", (int)(dot - name), name, dot + 1);
    for (char *c = title + 4; *c; c++)
        *c = (char)toupper((unsigned char)*c);
    ck_assert_str_eq(page.lines[1], title);
    man_page_clear(&page);
}
END_TEST

START_TEST(test_pages_pointed_to)
{
    struct man_page page;
    man_page_read(&page, pages[_i]);
    int found = 0;
    for (int i = 0; i < page.count; i++) {
        const char *at = strstr(page.lines[i], "Xr ");
        if (page.lines[i][0] != '.' || !at)
            continue;
        char name[64], number[8], whole[80];
        ck_assert_int_eq(sscanf(at, "Xr %63s %7s", name, number), 2);
        snprintf(whole, sizeof(whole), "%s %s", name, number);
        ck_assert_msg(is_known_page(whole), "%s points to %s", pages[_i], whole);
        found++;
    }
    ck_assert_int_gt(found, 1);
    man_page_clear(&page);
}
END_TEST

/* The examples of shoald.json(5) are good configurations. */
START_TEST(test_examples_of_the_configuration)
{
    struct man_page page;
    int begin, end, found = 0;
    man_page_read(&page, "shoald.json.5");
    ck_assert(man_page_section(&page, "EXAMPLES", &begin, &end));
    for (int i = begin; i < end; i++) {
        if (strcmp(page.lines[i], "{") != 0)
            continue;
        char text[4096];
        size_t used = 0;
        for (; strcmp(page.lines[i], ".Ed") != 0; i++)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s\n", page.lines[i]);
        struct config config;
        config_assert_good(&config, text);
        config_clear(&config);
        found++;
    }
    ck_assert_int_eq(found, 2);
    man_page_clear(&page);
}
END_TEST

/* --- that the comparison can fail ------------------------------------------------------------- */

static const char good_help[] = "usage: x\n\nOptions:\n  -a, --all FILE  every one\n"
                                "                  of them\n  --long-enough   [x]  y\n";

START_TEST(test_differences_are_seen)
{
    static const struct {
        const char *mdoc, *difference;
    } cases[] = {
        {".Sh OPTIONS\n.It Fl a , Fl -all Ar FILE\n.It Fl -long-enough\n.Sh X", ""},
        {".Sh OPTIONS\n.It Fl a , Fl -all Ar NAME\n.It Fl -long-enough\n",
         "--help has '-a, --all FILE', the page has not\n"
         "the page has '-a, --all NAME', --help has not\n"},
        {".Sh OPTIONS\n.It Fl a , Fl -all Op Ar FILE\n.It Fl -long-enough\n",
         "--help has '-a, --all FILE', the page has not\n"
         "the page has '-a, --all [FILE]', --help has not\n"},
        {".Sh OPTIONS\n.It Fl a , Fl -all Ar FILE\n.Sh MORE\n.It Fl -long-enough\n",
         "--help has '--long-enough', the page has not\n"},
        {".Sh OPTIONS\n.It Fl -long-enough\n.It Fl a , Fl -all Ar FILE\n",
         "'-a, --all FILE' of --help stands where the page has '--long-enough'\n"},
        {".Sh OPTIONS\n.It Fl a , Fl -all Ar FILE\n.It Fl -long-enough\n.It Fl -long-enough",
         "--help has 2, the page has 3: one is there twice\n"},
    };
    struct man_page page;
    man_page_parse(&page, cases[_i].mdoc);
    char *difference = terms_compare(good_help, "Options:", true, &page, "OPTIONS", "Fl");
    ck_assert_str_eq(difference, cases[_i].difference);
    free(difference);
    man_page_clear(&page);
}
END_TEST

START_TEST(test_sources_are_read)
{
    struct man_words words = {.count = 0};
    source_options("    {\"min-bytes\", required_argument, NULL, 'b'},\n"
                   "    {\"watch\", optional_argument, NULL, 'w'},\n"
                   "    {\"help\", no_argument, NULL, OPTION_HELP},\n",
                   &words);
    source_letters("while (getopt_long(argc, argv, \"-:hb:\", names, NULL))", &words);
    man_source_variables("env_text(\"SHOAL_JOB\"); f(\"RANK\", \"READY=1\", \"A\", \"RANK\");",
                         &words);
    static const char *const expected[] = {"--min-bytes ARG", "--watch [ARG]", "--help", "-h",
                                           "-b ARG",          "SHOAL_JOB",     "RANK"};
    ck_assert_int_eq(words.count, 7);
    for (int i = 0; i < words.count; i++)
        ck_assert_str_eq(words.words[i], expected[i]);
    man_words_clear(&words);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("man_programs");
    TCase *checks = tcase_create("checks");
    tcase_add_loop_test(checks, test_differences_are_seen, 0, 6);
    tcase_add_test(checks, test_sources_are_read);
    suite_add_tcase(suite, checks);
    TCase *each = tcase_create("programs");
    tcase_set_timeout(each, 120);
    tcase_add_loop_test(each, test_options_are_those_of_the_page, 0, PROGRAM_COUNT);
    tcase_add_loop_test(each, test_synopsis_has_every_option, 0, PROGRAM_COUNT);
    tcase_add_loop_test(each, test_form_of_help, 0, PROGRAM_COUNT);
    tcase_add_loop_test(each, test_options_are_those_of_the_source, 0, PROGRAM_COUNT);
    tcase_add_loop_test(each, test_environment, 0, PROGRAM_COUNT);
    suite_add_tcase(suite, each);
    TCase *every = tcase_create("pages");
    tcase_add_loop_test(every, test_sections, 0, PAGE_COUNT);
    tcase_add_loop_test(every, test_pages_pointed_to, 0, PAGE_COUNT);
    tcase_add_test(every, test_examples_of_the_configuration);
    suite_add_tcase(suite, every);
    return suite_main(suite);
}
