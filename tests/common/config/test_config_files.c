/* The configuration against golden files: every tests/common/config/files/NAME.json has a
 * NAME.expected with two parts. First line: what the JSON Schema says of the file ("schema accepts"
 * or "schema refuses"; "not JSON"). Then, for a good file, the effective configuration; for a bad
 * one, all of its problems. Where the schema accepts a bad file it cannot express what is wrong
 * there.
 *
 * `test_config_files --update` rewrites the golden files' second part and what config/ and doc/man
 * have been made of the table; look at the difference before committing it. */
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/config/config.h"
#include "tests/lib/config_assert.h"
#include "tests/lib/suite.h"

#define GOLDEN_FOLDER TEST_SOURCE_DIR "/tests/common/config/files"
#define CONFIG_FOLDER TEST_SOURCE_DIR "/config"
#define GOLDEN_MOST 256

static char *problems_text(const struct config_problems *problems)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(out);
    for (uint32_t i = 0; i < problems->count; i++)
        fprintf(out, "%s\n", problems->lines[i]);
    fclose(out);
    return text;
}

/* The names of the golden files without ".json", sorted; freed by golden_free. */
struct golden {
    char *names[GOLDEN_MOST];
    int count;
};

static int name_compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void golden_list(struct golden *golden)
{
    golden->count = 0;
    DIR *folder = opendir(GOLDEN_FOLDER);
    ck_assert_msg(folder != NULL, "%s: %s", GOLDEN_FOLDER, strerror(errno));
    for (struct dirent *entry; (entry = readdir(folder));) {
        size_t length = strlen(entry->d_name);
        if (length < 5 || strcmp(entry->d_name + length - 5, ".json") != 0)
            continue;
        ck_assert_int_lt(golden->count, GOLDEN_MOST);
        golden->names[golden->count++] = strndup(entry->d_name, length - 5);
    }
    closedir(folder);
    qsort(golden->names, (size_t)golden->count, sizeof(golden->names[0]), name_compare);
}

static void golden_free(struct golden *golden)
{
    for (int i = 0; i < golden->count; i++)
        free(golden->names[i]);
}

/* Return what stands in NAME.expected after the first line: the effective configuration or the
 * problems. The caller frees it. */
static char *golden_outcome(const char *name)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s.json", GOLDEN_FOLDER, name);
    struct config config;
    struct config_problems problems;
    int result = config_load(&config, path, &problems);
    char *text;
    if (result == 0) {
        ck_assert_uint_eq(problems.count, 0);
        text = config_print(&config);
    } else {
        ck_assert_int_eq(result, ERR_CONFIG);
        ck_assert_uint_gt(problems.count, 0);
        ck_assert_ptr_null(config.servers);
        text = problems_text(&problems);
    }
    config_clear(&config);
    config_problems_clear(&problems);
    ck_assert_ptr_nonnull(text);
    return text;
}

/* Problems begin with the file's path, golden files with its name. */
static char *without_folder(char *text)
{
    static const char folder[] = GOLDEN_FOLDER "/";
    for (char *at = text; (at = strstr(at, folder));)
        memmove(at, at + strlen(folder), strlen(at + strlen(folder)) + 1);
    return text;
}

START_TEST(test_golden)
{
    struct golden golden;
    golden_list(&golden);
    ck_assert_int_gt(golden.count, 20);
    for (int i = 0; i < golden.count; i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/%s.expected", GOLDEN_FOLDER, golden.names[i]);
        char *expected = config_file_read(path);
        ck_assert_msg(expected != NULL, "%s is missing", path);
        char *outcome = without_folder(golden_outcome(golden.names[i]));
        char *second = strchr(expected, '\n');
        ck_assert_msg(second && strcmp(second + 1, outcome) == 0, "%s.json: expected\n%s\ngot\n%s",
                      golden.names[i], second ? second + 1 : "(nothing)", outcome);
        free(expected);
        free(outcome);
    }
    golden_free(&golden);
}
END_TEST

START_TEST(test_update_golden)
{
    struct golden golden;
    golden_list(&golden);
    for (int i = 0; i < golden.count; i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/%s.expected", GOLDEN_FOLDER, golden.names[i]);
        char *before = config_file_read(path);
        char *outcome = without_folder(golden_outcome(golden.names[i]));
        char *text;
        int first = before ? (int)strcspn(before, "\n") : 0;
        ck_assert_int_gt(
            asprintf(&text, "%.*s\n%s", first ? first : 7, first ? before : "schema?", outcome), 0);
        config_file_write(path, text);
        free(before);
        free(outcome);
        free(text);
    }
    golden_free(&golden);
}
END_TEST

/* Texts that are made from the table: files, and the part of a file between two lines of its
 * own. */
static const struct {
    const char *path;
    char *(*make)(void);
    const char *begin, *end; /* the lines; NULL: the whole file is made */
} generated[] = {
    {CONFIG_FOLDER "/schema.json", config_schema, NULL, NULL},
    {CONFIG_FOLDER "/reference.md", config_reference, NULL, NULL},
    {CONFIG_FOLDER "/commented.json", config_commented, NULL, NULL},
    {TEST_SOURCE_DIR "/doc/man/shoald.json.5", config_manual,
     ".\\\" Made from the table of the keys: common/config/config_table.c.\n",
     ".\\\" End of what is made.\n"},
};
#define GENERATED_COUNT ((int)(sizeof(generated) / sizeof(generated[0])))

/* The file as the table wants it; the caller frees it. */
static char *generated_text(int place)
{
    char *made = generated[place].make();
    ck_assert_ptr_nonnull(made);
    if (!generated[place].begin)
        return made;
    char *there = config_file_read(generated[place].path);
    ck_assert_msg(there != NULL, "%s is missing", generated[place].path);
    char *begin = strstr(there, generated[place].begin), *end = strstr(there, generated[place].end);
    ck_assert_msg(begin && end && begin < end, "%s has not both lines", generated[place].path);
    begin += strlen(generated[place].begin);
    char *text = NULL;
    ck_assert_int_gt(asprintf(&text, "%.*s%s%s", (int)(begin - there), there, made, end), 0);
    free(made);
    free(there);
    return text;
}

START_TEST(test_generated_files)
{
    char *made = generated_text(_i);
    char *there = config_file_read(generated[_i].path);
    ck_assert_ptr_nonnull(made);
    ck_assert_msg(
        there && strcmp(there, made) == 0,
        "%s is not what the table says now: run %s/tests/common/config/test_config_files --update",
        generated[_i].path, TEST_BUILD_DIR);
    free(made);
    free(there);
}
END_TEST

START_TEST(test_update_generated)
{
    for (int i = 0; i < GENERATED_COUNT; i++) {
        char *made = generated_text(i);
        config_file_write(generated[i].path, made);
        free(made);
    }
}
END_TEST

START_TEST(test_print_loads_back)
{
    struct golden golden;
    golden_list(&golden);
    int good = 0;
    for (int i = 0; i < golden.count; i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/%s.json", GOLDEN_FOLDER, golden.names[i]);
        struct config config;
        struct config_problems problems;
        if (config_load(&config, path, &problems) == 0) {
            config_assert_prints_back(&config);
            good++;
        }
        config_clear(&config);
        config_problems_clear(&problems);
    }
    ck_assert_int_gt(good, 5);
    golden_free(&golden);
}
END_TEST

START_TEST(test_examples_load)
{
    static const char *const paths[] = {CONFIG_FOLDER "/minimal.json", CONFIG_FOLDER "/full.json"};
    struct config config;
    struct config_problems problems;
    int result = config_load(&config, paths[_i], &problems);
    ck_assert_msg(result == 0, "%s", problems.count ? problems.lines[0] : "no reason");
    config_assert_prints_back(&config);
    config_clear(&config);
    config_problems_clear(&problems);
}
END_TEST

/* Whether a key in comments comes before the object's end, so that a comma must stand between. */
static bool key_follows(const char *text)
{
    const char *end = strchr(text, '}'), *key = strstr(text, "//\"");
    return key && (!end || key < end);
}

/* The commented file with every key set: what follows a // and is no sentence. The caller frees. */
static char *uncommented(const char *text)
{
    char *made = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&made, &bytes);
    ck_assert_ptr_nonnull(out);
    for (size_t length; *text; text += length) {
        length = strcspn(text, "\n") + 1;
        size_t blanks = strspn(text, " ");
        if (strncmp(text + blanks, "//\"", 3) != 0) {
            fprintf(out, "%.*s", (int)length, text);
            continue;
        }
        bool comma = text[length - 2] != ',' && key_follows(text + length);
        fprintf(out, "%.*s%s\n", (int)(length - blanks - 3), text + blanks + 2, comma ? "," : "");
    }
    fclose(out);
    return made;
}

/* The keys of the example that has them all. */
static void expect_every_key(const char *text)
{
    char *full = config_file_read(CONFIG_FOLDER "/full.json"), key[64];
    ck_assert_ptr_nonnull(full);
    for (const char *at = full; (at = strchr(at, '"')); at++) {
        size_t length = strcspn(at + 1, "\"");
        if (strncmp(at + 1 + length, "\": ", 3) == 0) {
            snprintf(key, sizeof(key), "\"%.*s\":", (int)length, at + 1);
            ck_assert_msg(strstr(text, key) != NULL, "%s is not there", key);
        }
        at += length + 1;
    }
    free(full);
}

/* The commented file says nothing but the defaults; with every key set it is as good. */
START_TEST(test_commented_file)
{
    struct config config, defaults;
    char *text = config_file_read(CONFIG_FOLDER "/commented.json");
    ck_assert_ptr_nonnull(text);
    config_assert_good(&config, text);
    config_defaults(&defaults);
    config_assert_equal(&config, &defaults);
    config_clear(&config);
    config_clear(&defaults);
    expect_every_key(text);

    char *second = strstr(text, "//            {");
    ck_assert_ptr_nonnull(second); /* of the roster's two lines */
    memcpy(second, "  ", 2);
    /* listen.address is of this machine, and so the roster's must be. */
    for (char *address = text; (address = strstr(address, "\"192.0.2."));)
        memcpy(address, "\"127.0.0.", 9);
    char *set = uncommented(text);
    ck_assert_ptr_null(strstr(set, "//\""));
    config_assert_good(&config, set);
    ck_assert_uint_eq(config.server_count, 2);
    config_clear(&config);
    free(set);
    free(text);
}
END_TEST

/* The full example shows every key: printing it adds none. */
START_TEST(test_full_example_is_full)
{
    char *example = config_file_read(CONFIG_FOLDER "/full.json");
    struct config config;
    ck_assert_ptr_nonnull(example);
    config_assert_good(&config, example);
    char *printed = config_print(&config);
    ck_assert_str_eq(printed, example);
    free(printed);
    free(example);
    config_clear(&config);
}
END_TEST

START_TEST(test_files_that_cannot_be_read)
{
    char *folder = suite_make_directory();
    char path[512];
    struct config config;
    struct config_problems problems;

    snprintf(path, sizeof(path), "%s/none.json", folder);
    ck_assert_int_eq(config_load(&config, path, &problems), ERR_CONFIG);
    ck_assert_uint_eq(problems.count, 1);
    ck_assert_ptr_nonnull(strstr(problems.lines[0], "none.json: cannot be opened: No such file"));
    config_problems_clear(&problems);

    ck_assert_int_eq(config_load(&config, folder, &problems), ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(problems.lines[0], "cannot be read: Is a directory"));
    config_problems_clear(&problems);

    snprintf(path, sizeof(path), "%s/large.json", folder);
    config_file_write(path, "{}");
    ck_assert_int_eq(truncate(path, 1048577), 0);
    ck_assert_int_eq(config_load(&config, path, &problems), ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(problems.lines[0], "large.json: is larger than 1048576 bytes"));
    config_problems_clear(&problems);

    /* A NUL does not end the file early. */
    ck_assert_int_eq(truncate(path, 3), 0);
    ck_assert_int_eq(config_load(&config, path, &problems), ERR_CONFIG);
    ck_assert_ptr_nonnull(strstr(problems.lines[0], "large.json:1:3: "));
    config_problems_clear(&problems);
    config_clear(&config);
    suite_remove_directory(folder);
}
END_TEST

static const char schema_program[] =
    "import json, pathlib, re, sys\n"
    "import jsonschema\n"
    "schema = json.loads(pathlib.Path(sys.argv[1]).read_text())\n"
    "jsonschema.Draft202012Validator.check_schema(schema)\n"
    "validator = jsonschema.Draft202012Validator(schema)\n"
    "for path in sys.argv[2:]:\n"
    "    try:\n"
    "        text = pathlib.Path(path).read_bytes().decode()\n"
    "        document = json.loads(re.sub('(?m)^[ \\t]*//.*', '', text))\n"
    "    except ValueError:\n"
    "        print(path, 'not JSON')\n"
    "        continue\n"
    "    print(path, 'schema accepts' if validator.is_valid(document) else 'schema refuses')\n";

/* Return what the schema says of all *.json files, a "PATH VERDICT" a line, or NULL with a SKIP
 * line. */
static char *schema_verdicts(char *folder)
{
    char command[1024];
    char path[512];
    if (access("/usr/bin/python3", X_OK) != 0 ||
        system("/usr/bin/python3 -c 'import jsonschema; jsonschema.Draft202012Validator' "
               ">/dev/null 2>&1") != 0) {
        suite_skip("test_schema_agrees", "/usr/bin/python3 with jsonschema 4 is not there");
        return NULL;
    }
    snprintf(path, sizeof(path), "%s/validate.py", folder);
    config_file_write(path, schema_program);
    snprintf(command, sizeof(command),
             "/usr/bin/python3 '%s/validate.py' '%s/schema.json' '%s'/*.json '%s/minimal.json' "
             "'%s/full.json' > '%s/verdicts'",
             folder, CONFIG_FOLDER, GOLDEN_FOLDER, CONFIG_FOLDER, CONFIG_FOLDER, folder);
    ck_assert_int_eq(system(command), 0);
    snprintf(path, sizeof(path), "%s/verdicts", folder);
    return config_file_read(path);
}

START_TEST(test_schema_agrees)
{
    char *folder = suite_make_directory();
    char *verdicts = schema_verdicts(folder);
    struct golden golden;
    golden_list(&golden);
    for (int i = 0; verdicts && i < golden.count; i++) {
        char path[512];
        char line[600];
        snprintf(path, sizeof(path), "%s/%s.expected", GOLDEN_FOLDER, golden.names[i]);
        char *expected = config_file_read(path);
        ck_assert_msg(expected != NULL, "%s is missing", path);
        snprintf(line, sizeof(line), "%s/%s.json %.*s\n", GOLDEN_FOLDER, golden.names[i],
                 (int)strcspn(expected, "\n"), expected);
        ck_assert_msg(strstr(verdicts, line) != NULL, "the schema does not say: %s", line);
        /* The schema takes every file that the daemon takes. */
        if (strstr(expected, "\n{\n"))
            ck_assert_msg(strncmp(expected, "schema accepts\n", 15) == 0, "%s", path);
        free(expected);
    }
    if (verdicts) {
        ck_assert_ptr_nonnull(strstr(verdicts, CONFIG_FOLDER "/minimal.json schema accepts\n"));
        ck_assert_ptr_nonnull(strstr(verdicts, CONFIG_FOLDER "/full.json schema accepts\n"));
    }
    golden_free(&golden);
    free(verdicts);
    suite_remove_directory(folder);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("config_files");
    if (argc > 1 && strcmp(argv[1], "--update") == 0) {
        TCase *update = tcase_create("update");
        tcase_add_test(update, test_update_golden);
        tcase_add_test(update, test_update_generated);
        suite_add_tcase(suite, update);
        return suite_main(suite);
    }
    TCase *files = tcase_create("files");
    tcase_set_timeout(files, 60);
    tcase_add_test(files, test_golden);
    tcase_add_loop_test(files, test_generated_files, 0, GENERATED_COUNT);
    tcase_add_test(files, test_print_loads_back);
    tcase_add_loop_test(files, test_examples_load, 0, 2);
    tcase_add_test(files, test_full_example_is_full);
    tcase_add_test(files, test_commented_file);
    tcase_add_test(files, test_files_that_cannot_be_read);
    tcase_add_test(files, test_schema_agrees);
    suite_add_tcase(suite, files);
    return suite_main(suite);
}
