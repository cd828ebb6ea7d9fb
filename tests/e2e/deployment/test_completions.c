/* Completion of the programs' options in bash and zsh: the files that are made from --help offer
 * every option that a program knows, by the table in its source, and shells take the files. */
#include <regex.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/process.h"
#include "tests/lib/suite.h"

#define OPTIONS_MOST 64

/* Where each program's table of options is. */
static const struct program {
    const char *name, *source;
} programs[] = {
    {"shoald", "server/shoald.c"},
    {"shoalctl", "server/shoalctl/shoalctl.c"},
    {"shoalperf", "worker/programs/shoalperf/perf_options.c"},
    {"shoalrun", "worker/programs/shoalrun/launcher.c"},
};
#define PROGRAM_COUNT (sizeof(programs) / sizeof(programs[0]))

struct known {
    char *names[OPTIONS_MOST]; /* "--config" */
    bool valued[OPTIONS_MOST]; /* its value cannot be left out */
    size_t count;
};

static char *folder;

/* Output of a command that must end well; the caller frees it. */
static char *output_of(const char *const *argv)
{
    struct process *process = process_run(argv);
    int code = process_wait(process, 60000);
    ck_assert_msg(code == 0, "%s: exit code %d\n%.1500s\n%.1500s", argv[0], code,
                  process_output(process), process_errors(process));
    char *text = strdup(process_output(process));
    process_free(process);
    return text;
}

static void setup(void)
{
    folder = suite_make_directory();
    const char *argv[] = {TEST_SOURCE_DIR "/scripts/packages/completions.py",
                          folder,
                          TEST_BUILD_DIR "/bin/shoald",
                          TEST_BUILD_DIR "/bin/shoalctl",
                          TEST_BUILD_DIR "/bin/shoalperf",
                          TEST_BUILD_DIR "/bin/shoalrun",
                          NULL};
    free(output_of(argv));
}

static void teardown(void)
{
    suite_remove_directory(folder);
}

static char *source_read(const char *name)
{
    char path[300], *text = NULL;
    size_t room = 0;
    snprintf(path, sizeof(path), TEST_SOURCE_DIR "/%s", name);
    FILE *file = fopen(path, "re");
    ck_assert_msg(file != NULL, "%s cannot be read", path);
    ck_assert_int_gt(getdelim(&text, &room, '\0', file), 0);
    fclose(file);
    return text;
}

/* From lines such as {"config", required_argument, NULL, 'c'}. */
static void known_read(struct known *known, const struct program *program)
{
    char *text = source_read(program->source);
    regex_t row;
    regmatch_t found[3];
    ck_assert_int_eq(
        regcomp(&row, "\\{\"([a-z_-]+)\", (no|required|optional)_argument", REG_EXTENDED), 0);
    *known = (struct known){0};
    for (const char *at = text; regexec(&row, at, 3, found, 0) == 0; at += found[0].rm_eo) {
        ck_assert_uint_lt(known->count, OPTIONS_MOST);
        known->valued[known->count] = at[found[2].rm_so] == 'r';
        ck_assert_int_gt(asprintf(&known->names[known->count++], "--%.*s",
                                  (int)(found[1].rm_eo - found[1].rm_so), at + found[1].rm_so),
                         0);
    }
    regfree(&row);
    free(text);
    ck_assert_uint_gt(known->count, 3);
}

static void known_clear(struct known *known)
{
    for (size_t i = 0; i < known->count; i++)
        free(known->names[i]);
}

/* Whether a line of the text is the word. */
static bool has_line(const char *text, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = text; (at = strstr(at, word)); at += length)
        if ((at == text || at[-1] == '\n') && (at[length] == '\n' || !at[length]))
            return true;
    return false;
}

/* Return what bash offers for the last of the words, a line each; the caller frees it. */
static char *bash_offers(const char *program, const char *words)
{
    char script[1200];
    snprintf(script, sizeof(script),
             "set -e; . '%s/bash/%s'; COMP_WORDS=(%s %s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "
             "compopt() { :; }; _%s; printf '%%s\\n' \"${COMPREPLY[@]}\"",
             folder, program, program, words, program);
    const char *argv[] = {"/bin/bash", "-c", script, NULL};
    return output_of(argv);
}

START_TEST(bash_offers_every_option)
{
    const struct program *program = &programs[_i];
    struct known known;
    known_read(&known, program);
    char *offered = bash_offers(program->name, "-");
    for (size_t i = 0; i < known.count; i++)
        ck_assert_msg(has_line(offered, known.names[i]), "%s: %s is not offered: %s", program->name,
                      known.names[i], offered);
    /* And none that the program does not know. */
    size_t lines = 0;
    for (const char *at = offered; (at = strstr(at, "--")); at += 2)
        lines++;
    ck_assert_uint_eq(lines, known.count);
    free(offered);
    known_clear(&known);
}
END_TEST

static void expect_bash(const char *program, const char *words, const char *expected)
{
    char *offered = bash_offers(program, words);
    ck_assert_msg(strcmp(offered, expected) == 0, "%s %s: %s", program, words, offered);
    free(offered);
}

START_TEST(bash_offers_values)
{
    char words[400];
    expect_bash("shoalctl", "s", "status\nsecret\n");
    expect_bash("shoalctl", "--se", "--seconds\n");
    expect_bash("shoalctl", "--seconds 'x'", "\n");
    expect_bash("shoalperf", "-d b", "bfloat16\n");
    expect_bash("shoalperf", "--datatype = i", "int8\nint32\nint64\nint16\n");
    expect_bash("shoalperf", "--datatype =", /* nothing of the value is there yet */
                "float\ndouble\nhalf\nbfloat16\nint8\nuint8\nint32\nint64\nint16\nuint16\nuint32\n"
                "uint64\nall\n");
    expect_bash("shoalperf", "--op s", "sum\n");
    expect_bash("shoalperf", "--device c", "cpu\ncuda\n");
    expect_bash("shoalperf", "all_r", "all_reduce\n");
    snprintf(words, sizeof(words), "--config '%s/ba'", folder);
    char expected[400];
    snprintf(expected, sizeof(expected), "%s/bash\n", folder);
    expect_bash("shoald", words, expected);
    expect_bash("shoalrun", words, expected);
}
END_TEST

/* The program that shoalrun starts, and nothing of shoalrun's behind it. */
START_TEST(bash_completes_the_command)
{
    char words[400], expected[400];
    char *offered = bash_offers("shoalrun", "-n 2 --job = x bas");
    ck_assert_msg(has_line(offered, "bash"), "%s", offered);
    free(offered);
    offered = bash_offers("shoalrun", "-n 2 -- bas");
    ck_assert_msg(has_line(offered, "bash"), "%s", offered);
    free(offered);
    snprintf(words, sizeof(words), "-n 2 bash --job '%s/ba'", folder);
    snprintf(expected, sizeof(expected), "%s/bash\n", folder);
    expect_bash("shoalrun", words, expected);
    expect_bash("shoalrun", "-n 2 bash --jo", "\n");
}
END_TEST

static bool zsh_is_missing(const char *test)
{
    if (access("/usr/bin/zsh", X_OK) == 0)
        return false;
    suite_skip(test, "no zsh here");
    return true;
}

/* Return what zsh hands to its own _arguments, a line each; the caller frees it. */
static char *zsh_arguments(const char *program)
{
    char script[600];
    snprintf(script, sizeof(script), "_arguments() { print -rl -- \"$@\" }; . '%s/zsh/_%s'", folder,
             program);
    const char *argv[] = {"/usr/bin/zsh", "-f", "-e", "-c", script, NULL};
    return output_of(argv);
}

START_TEST(zsh_knows_every_option)
{
    const struct program *program = &programs[_i];
    if (zsh_is_missing("completions in zsh"))
        return;
    struct known known;
    known_read(&known, program);
    char *text = zsh_arguments(program->name);
    for (size_t i = 0; i < known.count; i++) {
        char wanted[100];
        snprintf(wanted, sizeof(wanted), known.valued[i] ? "%s=[" : "%s", known.names[i]);
        ck_assert_msg(strstr(text, wanted) != NULL, "%s: %s: %s", program->name, wanted, text);
    }
    free(text);
    known_clear(&known);
}
END_TEST

/* Found by its first line, and read without an error. */
START_TEST(zsh_accepts_them)
{
    if (zsh_is_missing("completions that zsh accepts"))
        return;
    for (size_t i = 0; i < PROGRAM_COUNT; i++) {
        char script[900], wanted[64];
        const char *name = programs[i].name;
        snprintf(script, sizeof(script),
                 "zsh -n '%s/zsh/_%s'; fpath=('%s/zsh' $fpath); autoload -Uz compinit; "
                 "compinit -u -d '%s/dump'; print ${_comps[%s]}",
                 folder, name, folder, folder, name);
        const char *argv[] = {"/usr/bin/zsh", "-f", "-e", "-c", script, NULL};
        char *text = output_of(argv);
        snprintf(wanted, sizeof(wanted), "_%s\n", name);
        ck_assert_str_eq(text, wanted);
        free(text);
    }
}
END_TEST

/* A program whose --help is something else makes no file that offers nothing. */
START_TEST(a_help_without_options)
{
    const char *argv[] = {TEST_SOURCE_DIR "/scripts/packages/completions.py", folder, "/bin/true",
                          NULL};
    char path[300];
    snprintf(path, sizeof(path), "%s/true", folder);
    FILE *file = fopen(path, "wxe");
    ck_assert_ptr_nonnull(file);
    fputs("#!/bin/sh\necho usage: true\n", file);
    fclose(file);
    ck_assert_int_eq(chmod(path, 0755), 0);
    argv[2] = path;
    struct process *process = process_run(argv);
    ck_assert_int_eq(process_wait(process, 60000), 1);
    ck_assert_ptr_nonnull(strstr(process_errors(process), "--help has no options"));
    process_free(process);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("completions");
    TCase *cases = tcase_create("completions");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_loop_test(cases, bash_offers_every_option, 0, PROGRAM_COUNT);
    tcase_add_test(cases, bash_offers_values);
    tcase_add_test(cases, bash_completes_the_command);
    tcase_set_timeout(cases, 120); /* several shells for each program, on a busy machine */
    tcase_add_loop_test(cases, zsh_knows_every_option, 0, PROGRAM_COUNT);
    tcase_add_test(cases, zsh_accepts_them);
    tcase_add_test(cases, a_help_without_options);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
