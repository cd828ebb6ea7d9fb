/* That the papers are true: the README's example is the file that is built and does what is shown,
 * and what any of them names (files, make targets, links, keys of the configuration) exists. That
 * they are short: the README in words, those of folders and the changelog in lines. */
#include <ctype.h>
#include <fnmatch.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

#define PAPERS_MAX 128
#define TOKEN_BYTES 256
#define README_WORDS_MAX 1200
#define FOLDER_README_LINES_MAX 80
#define CHANGELOG_LINES_MAX 60

struct papers {
    char *paths[PAPERS_MAX]; /* below the source folder, "config/README.md" */
    int count;
};

/* nftw has no argument for its caller. */
static struct papers *walked;
static int walked_without_readme;

static char *file_read(const char *name)
{
    char path[1024];
    snprintf(path, sizeof(path), TEST_SOURCE_DIR "/%s", name);
    FILE *file = fopen(path, "re");
    ck_assert_msg(file != NULL, "%s cannot be read", path);
    char *text = NULL;
    size_t room = 0;
    ck_assert_msg(getdelim(&text, &room, '\0', file) >= 0, "%s is empty", path);
    fclose(file);
    return text;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length > end_length && strcmp(text + length - end_length, end) == 0;
}

static void papers_add(struct papers *papers, const char *name)
{
    ck_assert_int_lt(papers->count, PAPERS_MAX);
    papers->paths[papers->count++] = strdup(name);
}

static int walk_entry(const char *path, const struct stat *status, int type, struct FTW *place)
{
    (void)status, (void)place;
    if (type == FTW_D) {
        char readme[1024];
        snprintf(readme, sizeof(readme), "%s/README.md", path);
        bool below_tests = strstr(path, TEST_SOURCE_DIR "/tests/") != NULL;
        bool below_doc = strstr(path, TEST_SOURCE_DIR "/doc/") != NULL;
        bool python_cache = strstr(path, "/__pycache__") != NULL;
        if (!below_tests && !below_doc && !python_cache && access(readme, R_OK) != 0) {
            printf("%s has no README.md\n", path);
            walked_without_readme++;
        }
    } else if (ends_with(path, ".md")) {
        papers_add(walked, path + sizeof(TEST_SOURCE_DIR));
    }
    return 0;
}

static const char *const folders[] = {"server", "worker", "common", "config",
                                      "doc",    "tests",  "scripts"};

/* All papers of the tree; how many folders have no README.md. */
static int papers_find(struct papers *papers)
{
    *papers = (struct papers){.count = 0};
    glob_t top;
    ck_assert_int_eq(glob(TEST_SOURCE_DIR "/*.md", 0, NULL, &top), 0);
    for (size_t i = 0; i < top.gl_pathc; i++)
        papers_add(papers, top.gl_pathv[i] + strlen(TEST_SOURCE_DIR) + 1);
    globfree(&top);
    walked = papers;
    walked_without_readme = 0;
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        char path[1024];
        snprintf(path, sizeof(path), TEST_SOURCE_DIR "/%s", folders[i]);
        ck_assert_int_eq(nftw(path, walk_entry, 16, FTW_PHYS), 0);
    }
    return walked_without_readme;
}

static void papers_clear(struct papers *papers)
{
    for (int i = 0; i < papers->count; i++)
        free(papers->paths[i]);
}

/* --- names ------------------------------------------------------------------------------------ */

static bool pattern_matches(const char *folder, size_t folder_bytes, const char *pattern)
{
    char path[2048];
    snprintf(path, sizeof(path), TEST_SOURCE_DIR "/%.*s%s", (int)folder_bytes, folder, pattern);
    glob_t found;
    int result = glob(path, 0, NULL, &found);
    if (result == 0)
        globfree(&found);
    return result == 0;
}

/* Whether a name in a paper exists, beside the paper or from the top. */
static bool name_exists(const char *paper, const char *name)
{
    const char *slash = strrchr(paper, '/');
    size_t folder_bytes = slash ? (size_t)(slash + 1 - paper) : 0;
    return pattern_matches(paper, folder_bytes, name) || pattern_matches("", 0, name);
}

/* Whether a word between backticks is meant as a file of this tree. */
static bool is_file_name(const char *word)
{
    static const char *const endings[] = {".c",  ".h",  ".[ch]", ".md", ".json",
                                          ".sh", ".in", ".py",   ".svg"};
    /* Places of a system, results of a build, options, words that stand for others. */
    if (word[0] == '/' || word[0] == '-' || word[0] == '.' || strpbrk(word, " <>{}$@:=()\"|") ||
        strncmp(word, "build/", 6) == 0 || strcmp(word, "N/A") == 0)
        return false;
    size_t length = strlen(word);
    if (strchr(word, '/') && word[length - 1] != '/')
        return true;
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        if (ends_with(word, endings[i]) && !(isupper((unsigned char)word[0]) && strchr(word, '_')))
            return true;
    }
    return false;
}

/* "timeouts.peer_ms" and the like. */
static bool is_config_key(const char *word, const char **key)
{
    static const char *const sections[] = {"socket.", "listen.",   "fabric.", "data.",
                                           "limits.", "timeouts.", "log.",    "metrics."};
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++) {
        size_t length = strlen(sections[i]);
        if (strncmp(word, sections[i], length) != 0)
            continue;
        *key = word + length;
        return **key != '\0' && strspn(*key, "abcdefghijklmnopqrstuvwxyz_") == strlen(*key);
    }
    return false;
}

static bool target_exists(const char *makefile, const char *target)
{
    char line[TOKEN_BYTES + 8];
    snprintf(line, sizeof(line), "\n%s:", target);
    return strstr(makefile, line) != NULL;
}

/* The targets of "make a b", or, where words may follow, the first; how many do not exist. */
static int targets_check(const char *paper, const char *makefile, const char *command, int most)
{
    int wrong = 0;
    const char *word = command + strlen("make ");
    for (int i = 0; i < most && islower((unsigned char)*word); i++) {
        char target[TOKEN_BYTES];
        size_t length = strspn(word, "abcdefghijklmnopqrstuvwxyz-");
        if (length >= sizeof(target) || (word[length] && !strchr(" `\n", word[length])))
            break; /* VARIABLE=value, a file */
        snprintf(target, sizeof(target), "%.*s", (int)length, word);
        if (!target_exists(makefile, target)) {
            printf("%s: make %s: no such target\n", paper, target);
            wrong++;
        }
        if (word[length] != ' ')
            break;
        word += length + 1;
    }
    return wrong;
}

/* One word between backticks; 1 when it names what does not exist. */
static int word_check(const char *paper, const char *makefile, const char *schema, const char *word)
{
    const char *key;
    if (strncmp(word, "make ", 5) == 0)
        return targets_check(paper, makefile, word, INT_MAX);
    if (is_config_key(word, &key) && !ends_with(word, ".json")) {
        char quoted[TOKEN_BYTES + 4];
        snprintf(quoted, sizeof(quoted), "\"%s\"", key);
        if (strstr(schema, quoted))
            return 0;
        if (is_file_name(word) && name_exists(paper, word))
            return 0;
        printf("%s: `%s` is no key of the configuration\n", paper, word);
        return 1;
    }
    if (!is_file_name(word) || name_exists(paper, word))
        return 0;
    printf("%s: `%s` does not exist\n", paper, word);
    return 1;
}

/* Whether a heading gives the anchor: "## How much travels" gives "how-much-travels". */
static bool heading_gives(const char *heading, const char *anchor)
{
    heading += strspn(heading, "# ");
    for (; *heading; heading++) {
        char c = (char)tolower((unsigned char)*heading);
        c = c == ' ' ? '-' : c;
        if (!isalnum((unsigned char)c) && c != '-' && c != '_')
            continue;
        if (c != *anchor++)
            return false;
    }
    return *anchor == '\0';
}

static bool anchor_exists(const char *paper, const char *anchor)
{
    char *text = file_read(paper), *rest = text;
    bool found = false;
    for (char *line; !found && (line = strsep(&rest, "\n")) != NULL;)
        found = line[0] == '#' && heading_gives(line, anchor);
    free(text);
    return found;
}

/* [text](place#anchor) in a line; the anchors of papers are looked for, too. */
static int links_check(const char *paper, const char *line)
{
    const char *slash = strrchr(paper, '/');
    size_t folder_bytes = slash ? (size_t)(slash + 1 - paper) : 0;
    int wrong = 0;
    for (const char *at = line; (at = strstr(at, "](")) != NULL;) {
        at += 2;
        char place[TOKEN_BYTES], anchor[TOKEN_BYTES], target[2 * TOKEN_BYTES];
        size_t length = strcspn(at, ")#");
        size_t anchor_length = at[length] == '#' ? strcspn(at + length + 1, ")") : 0;
        if (length >= sizeof(place) || anchor_length >= sizeof(anchor) ||
            strncmp(at, "http", 4) == 0)
            continue;
        snprintf(place, sizeof(place), "%.*s", (int)length, at);
        snprintf(anchor, sizeof(anchor), "%.*s", (int)anchor_length, at + length + 1);
        snprintf(target, sizeof(target), "%.*s%s", length > 0 ? (int)folder_bytes : 0, paper,
                 length > 0 ? place : paper);
        if (!pattern_matches("", 0, target)) {
            printf("%s: the link %s leads nowhere\n", paper, place);
            wrong++;
        } else if (anchor[0] && ends_with(target, ".md") && !anchor_exists(target, anchor)) {
            printf("%s: %s has no heading for #%s\n", paper, target, anchor);
            wrong++;
        }
    }
    return wrong;
}

#define PATH_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./"

/* The programs and files that a command in a paper names: build/bin/shoald, scripts/cluster.sh. */
static int command_check(const char *paper, const char *command)
{
    static const char *const places[] = {"scripts/", "worker/", "config/", "tests/"};
    static const char binaries[] = "build/bin/", tests[] = "build/tests/";
    int wrong = 0;
    for (const char *word = command; *word; word++) {
        size_t length = strspn(word, PATH_CHARACTERS);
        if (length == 0 || (word > command && strchr(PATH_CHARACTERS, word[-1])))
            continue;
        length -= word[length - 1] == '.';
        char path[1024] = "";
        if (strncmp(word, binaries, strlen(binaries)) == 0)
            snprintf(path, sizeof(path), TEST_BUILD_DIR "/bin/%.*s",
                     (int)(length - strlen(binaries)), word + strlen(binaries));
        else if (strncmp(word, tests, strlen(tests)) == 0)
            snprintf(path, sizeof(path), TEST_SOURCE_DIR "/tests/%.*s.c",
                     (int)(length - strlen(tests)), word + strlen(tests));
        for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
            if (strncmp(word, places[i], strlen(places[i])) == 0)
                snprintf(path, sizeof(path), TEST_SOURCE_DIR "/%.*s", (int)length, word);
        }
        if (path[0] && access(path, F_OK) != 0) {
            printf("%s: %.*s does not exist\n", paper, (int)length, word);
            wrong++;
        }
    }
    return wrong;
}

static int line_check(const char *paper, const char *makefile, const char *schema, char *line)
{
    int wrong = links_check(paper, line);
    bool code = strncmp(line, "    ", 4) == 0;
    if (code && strncmp(line + 4, "make ", 5) == 0)
        wrong += targets_check(paper, makefile, line + 4, 1);
    if (code)
        return wrong + command_check(paper, line);
    for (char *at = line; (at = strchr(at, '`')) != NULL;) {
        char *end = strchr(++at, '`');
        if (!end)
            break;
        *end = '\0';
        if (end - at < TOKEN_BYTES)
            wrong += word_check(paper, makefile, schema, at);
        at = end + 1;
    }
    return wrong;
}

static int paper_check(const char *paper, const char *makefile, const char *schema)
{
    char *text = file_read(paper), *rest = text;
    int wrong = 0;
    bool fenced = false;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (strncmp(line, "```", 3) == 0)
            fenced = !fenced;
        else if (!fenced)
            wrong += line_check(paper, makefile, schema, line);
    }
    free(text);
    return wrong;
}

START_TEST(test_what_is_named_exists)
{
    struct papers papers;
    papers_find(&papers);
    ck_assert_int_ge(papers.count, 15);
    char *makefile = file_read("Makefile");
    char *schema = file_read("config/schema.json");
    int wrong = 0;
    for (int i = 0; i < papers.count; i++)
        wrong += paper_check(papers.paths[i], makefile, schema);
    free(makefile);
    free(schema);
    papers_clear(&papers);
    fflush(stdout); /* a failing test does not */
    ck_assert_msg(wrong == 0, "%d names of things that do not exist (above)", wrong);
}
END_TEST

/* How long a paper may be, in lines or in words: 1 when it is longer. */
static int length_check(const char *paper, const char *text)
{
    int lines = 0, words = 0;
    bool in_word = false;
    for (const char *at = text; *at; at++) {
        lines += *at == '\n';
        words += !isspace((unsigned char)*at) && !in_word;
        in_word = !isspace((unsigned char)*at);
    }
    bool too_long = false;
    if (strcmp(paper, "README.md") == 0)
        too_long = words > README_WORDS_MAX;
    else if (strcmp(paper, "CHANGELOG.md") == 0)
        too_long = lines > CHANGELOG_LINES_MAX;
    else if (ends_with(paper, "/README.md"))
        too_long = lines > FOLDER_README_LINES_MAX;
    if (too_long)
        printf("%s is too long: %d lines, %d words\n", paper, lines, words);
    return too_long;
}

/* A step of the tour, "6. `file.c`, `function`": 1 when that file has no such function. */
static int step_check(const char *paper, const char *line)
{
    char file[TOKEN_BYTES], function[TOKEN_BYTES - 2], call[TOKEN_BYTES];
    if (sscanf(line, "%*d. `%255[^`]`, `%253[a-z_]`", file, function) != 2)
        return 0;
    snprintf(call, sizeof(call), "%s(", function);
    bool found = false;
    if (name_exists(paper, file)) {
        char *text = file_read(file);
        found = strstr(text, call) != NULL;
        free(text);
    }
    if (!found)
        printf("%s: %s has no function %s\n", paper, file, function);
    return !found;
}

START_TEST(test_the_tour_leads_through_functions)
{
    char *text = file_read("doc/tour.md"), *rest = text;
    int steps = 0, wrong = 0;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        steps += isdigit((unsigned char)line[0]) && strstr(line, ".c`, `");
        wrong += step_check("doc/tour.md", line);
    }
    free(text);
    fflush(stdout);
    ck_assert_int_ge(steps, 8);
    ck_assert_int_le(steps, 12);
    ck_assert_msg(wrong == 0, "%d steps lead nowhere (above)", wrong);
}
END_TEST

START_TEST(test_papers_are_short)
{
    struct papers papers;
    papers_find(&papers);
    int wrong = 0;
    for (int i = 0; i < papers.count; i++) {
        char *text = file_read(papers.paths[i]);
        wrong += length_check(papers.paths[i], text);
        free(text);
    }
    papers_clear(&papers);
    fflush(stdout);
    ck_assert_msg(wrong == 0, "%d papers are too long (above)", wrong);
}
END_TEST

START_TEST(test_every_folder_has_a_readme)
{
    struct papers papers;
    int without = papers_find(&papers);
    papers_clear(&papers);
    fflush(stdout);
    ck_assert_msg(without == 0, "%d folders have no README.md (above)", without);
}
END_TEST

/* Whether a word between backticks in the paper stands for the file. */
static bool paper_names(const char *paper, const char *path, const char *name)
{
    char *text = file_read(paper), *rest = text;
    bool found = false;
    for (char *word; !found && (word = strsep(&rest, "`")) != NULL;)
        found = fnmatch(word, path, FNM_PATHNAME) == 0 || fnmatch(word, name, FNM_PATHNAME) == 0;
    free(text);
    return found;
}

START_TEST(test_every_source_is_in_its_folders_readme)
{
    static const char *const sources[] = {"common/auth",
                                          "common/base",
                                          "common/config",
                                          "common/format",
                                          "common/memory",
                                          "common/reduce",
                                          "common/text",
                                          "common/transport",
                                          "server",
                                          "server/control",
                                          "server/coordinator",
                                          "server/engine",
                                          "server/exchange",
                                          "server/exchange/ground",
                                          "server/exchange/model",
                                          "server/exchange/node",
                                          "server/exchange/owner",
                                          "server/jobs",
                                          "server/shoalctl",
                                          "server/status",
                                          "worker",
                                          "worker/api",
                                          "worker/device",
                                          "worker/drive",
                                          "worker/fusion",
                                          "worker/job",
                                          "worker/progress",
                                          "worker/request",
                                          "worker/programs/shoalperf",
                                          "worker/programs/shoalrun",
                                          "worker/examples",
                                          "worker/examples/digits",
                                          "worker/python/shoal",
                                          "worker/python/shoal/torch",
                                          "worker/python/examples"};
    int missing = 0;
    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
        char pattern[1024], paper[TOKEN_BYTES];
        snprintf(pattern, sizeof(pattern), TEST_SOURCE_DIR "/%s/*.%s", sources[i],
                 strstr(sources[i], "python") ? "py" : "[ch]");
        snprintf(paper, sizeof(paper), "%s/README.md", sources[i]);
        glob_t files;
        ck_assert_int_eq(glob(pattern, 0, NULL, &files), 0);
        for (size_t j = 0; j < files.gl_pathc; j++) {
            const char *path = files.gl_pathv[j] + strlen(TEST_SOURCE_DIR) + 1;
            if (paper_names(paper, path, strrchr(path, '/') + 1))
                continue;
            printf("%s does not say what %s is\n", paper, path);
            missing++;
        }
        globfree(&files);
    }
    fflush(stdout);
    ck_assert_msg(missing == 0, "%d files that no paper names (above)", missing);
}
END_TEST

/* That the checks can fail. */
START_TEST(test_the_checks_find_what_is_wrong)
{
    const char *makefile = "\nall: x\n\ncheck:\n", *schema = "{\"peer_ms\": 1}";
    static const struct {
        const char *line;
        int wrong;
    } cases[] = {
        {"`make check` and `make all check`", 0},
        {"`make chick`, `make all chuck`", 2},
        {"    make check      runs every test", 0},
        {"    make chick      runs every test", 1},
        {"`README.md`, `worker/shoal.h`, `common/format/wire.[ch]`, `/etc/none`, `build/bin/none`",
         0},
        {"`worker/none.h`", 1},
        {"`none.c` and `none.[ch]`", 2},
        {"`timeouts.peer_ms`, `timeouts.*`", 0},
        {"`timeouts.pear_ms`", 1},
        {"[a](README.md), [b](config/README.md), [d](https://example.org/#there)", 0},
        {"[a](NOTHING.md), [b](config/NOTHING.md)", 2},
        {"[a](SECURITY.md#the-secret), [b](#status)", 0},
        {"[a](SECURITY.md#the-sacred), [b](#no-such-heading)", 2},
        {"    build/bin/shoalrun -n 2 -- python3 worker/examples/first.c", 0},
        {"    build/bin/shoalran -n 2 -- python3 worker/examples/fist.c", 2},
        {"    make build/tests/common/format/test_wire && build/tests/common/test_wire", 1},
    };
    printf("what is reported from here on is wrong on purpose\n");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *line = strdup(cases[i].line);
        int wrong = line_check("README.md", makefile, schema, line);
        ck_assert_msg(wrong == cases[i].wrong, "%s: %d, not %d", cases[i].line, wrong,
                      cases[i].wrong);
        free(line);
    }
    static const struct {
        const char *paper, *unit;
        int units, wrong;
    } lengths[] = {
        {"README.md", "word ", README_WORDS_MAX, 0},
        {"README.md", "word ", README_WORDS_MAX + 1, 1},
        {"README.md", "\n", README_WORDS_MAX + 1, 0},
        {"common/README.md", "line\n", FOLDER_README_LINES_MAX, 0},
        {"common/README.md", "line\n", FOLDER_README_LINES_MAX + 1, 1},
        {"CHANGELOG.md", "line\n", CHANGELOG_LINES_MAX, 0},
        {"CHANGELOG.md", "line\n", CHANGELOG_LINES_MAX + 1, 1},
        {"doc/tour.md", "line\n", 10000, 0},
    };
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        size_t bytes = strlen(lengths[i].unit);
        char *text = calloc((size_t)lengths[i].units + 1, bytes);
        for (int j = 0; j < lengths[i].units; j++)
            memcpy(text + (size_t)j * bytes, lengths[i].unit, bytes);
        ck_assert_msg(length_check(lengths[i].paper, text) == lengths[i].wrong,
                      "%s with %d units is not judged as it should be", lengths[i].paper,
                      lengths[i].units);
        free(text);
    }
    const char *tour = "doc/tour.md";
    ck_assert_int_eq(step_check(tour, "6. `worker/api/shoal.c`, `shoal_open`. It"), 0);
    ck_assert_int_eq(step_check(tour, "6. `worker/api/shoal.c`, `shoal_opine`. It"), 1);
    ck_assert_int_eq(step_check(tour, "16. `worker/api/shoel.c`, `shoal_open`. It"), 1);
    printf("up to here\n");
}
END_TEST

/* --- the example ------------------------------------------------------------------------------ */

/* The first fenced block of this language; the caller frees it. */
static char *block_of(const char *paper, const char *text, const char *language)
{
    char fence[32];
    snprintf(fence, sizeof(fence), "\n```%s\n", language);
    const char *begin = strstr(text, fence);
    ck_assert_msg(begin != NULL, "%s has no block ```%s", paper, language);
    begin += strlen(fence);
    const char *end = strstr(begin, "\n```\n");
    ck_assert_ptr_nonnull(end);
    return strndup(begin, (size_t)(end + 1 - begin));
}

static void assert_block_is(const char *paper, const char *language, const char *name)
{
    char *text = file_read(paper);
    char *block = block_of(paper, text, language), *file = file_read(name);
    ck_assert_msg(strcmp(block, file) == 0, "%s shows another %s than the file:\n%s", paper, name,
                  block);
    free(block);
    free(file);
    free(text);
}

START_TEST(test_the_blocks_are_the_files)
{
    assert_block_is("README.md", "c", "worker/examples/first.c");
    assert_block_is("doc/operations.md", "json", "config/minimal.json");
}
END_TEST

START_TEST(test_the_example_does_what_is_shown)
{
    char *readme = file_read("README.md");
    const char *lines[] = {"rank 0 of 2: 2 20 200 1\n", "rank 1 of 2: 2 20 200 1\n"};
    char *directory = suite_make_directory();
    char variable[512];
    snprintf(variable, sizeof(variable), "TMPDIR=%s", directory);
    struct process_start start = {
        .argv = (const char *[]){CLUSTER_BIN "shoalrun", "--nodes", "1", "-n", "2", "--",
                                 CLUSTER_BIN "shoal-first", NULL},
        .environment = (const char *[]){variable, "SHOAL_SOCKET=", NULL},
    };
    struct process *process = process_start(&start);
    int code = process_wait(process, CLUSTER_PATIENCE_MS);
    const char *output = process_output(process);
    ck_assert_msg(code == 0, "exit code %d\n%s%s", code, output, process_errors(process));
    for (int i = 0; i < 2; i++) {
        ck_assert_msg(strstr(output, lines[i]) != NULL, "no \"%s\" in:\n%s", lines[i], output);
        ck_assert_msg(strstr(readme, lines[i]) != NULL, "README.md shows something else");
    }
    ck_assert_uint_eq(strlen(output), strlen(lines[0]) + strlen(lines[1]));
    process_free(process);
    suite_remove_directory(directory);
    free(readme);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("readme");
    TCase *names = tcase_create("names");
    tcase_add_test(names, test_the_checks_find_what_is_wrong);
    tcase_add_test(names, test_what_is_named_exists);
    tcase_add_test(names, test_papers_are_short);
    tcase_add_test(names, test_the_tour_leads_through_functions);
    tcase_add_test(names, test_every_folder_has_a_readme);
    tcase_add_test(names, test_every_source_is_in_its_folders_readme);
    suite_add_tcase(suite, names);
    TCase *example = tcase_create("example");
    tcase_set_timeout(example, 80); /* more than the process gets */
    tcase_add_test(example, test_the_blocks_are_the_files);
    tcase_add_test(example, test_the_example_does_what_is_shown);
    suite_add_tcase(suite, example);
    return suite_main(suite);
}
