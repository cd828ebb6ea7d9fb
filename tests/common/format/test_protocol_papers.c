/* That doc/protocol is true: it names every line with all its keys, and the offsets of the arena.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/format/arena.h"
#include "common/format/message.h"
#include "common/format/wire.h"
#include "tests/lib/suite.h"

static char *paper_read(const char *name)
{
    char path[1024];
    snprintf(path, sizeof(path), TEST_SOURCE_DIR "/doc/protocol/%s", name);
    FILE *file = fopen(path, "re");
    ck_assert_msg(file != NULL, "%s cannot be read", path);
    char *text = NULL;
    size_t room = 0;
    ck_assert_msg(getdelim(&text, &room, '\0', file) >= 0, "%s is empty", path);
    fclose(file);
    return text;
}

/* --- lines ------------------------------------------------------------------------------------ */

/* Whether the passage, of so many bytes, names every key of the line. */
static bool passage_has_keys(const char *passage, size_t bytes, const char *line)
{
    char *text = strndup(passage, bytes);
    bool all = true;
    const char *at = strchr(line, ','); /* behind the type */
    while (all && at && (at = strchr(at, '"')) != NULL) {
        const char *end = strchr(at + 1, '"');
        char key[64];
        snprintf(key, sizeof(key), "`%.*s`", (int)(end - at - 1), at + 1);
        all = end[1] != ':' || strstr(text, key) != NULL;
        at = end + 1;
    }
    free(text);
    return all;
}

/* A row of a table that begins with the type, or a paragraph that begins with it and "has". */
static bool paper_has_line(const char *paper, const char *type, const char *line)
{
    char row[64], sentence[64];
    snprintf(row, sizeof(row), "\n| `%s` |", type);
    snprintf(sentence, sizeof(sentence), "\n`%s` has ", type);
    for (const char *at = paper; (at = strstr(at, row)) != NULL; at++) {
        if (passage_has_keys(at, 1 + strcspn(at + 1, "\n"), line))
            return true;
    }
    const char *at = strstr(paper, sentence), *end = at ? strstr(at, "\n\n") : NULL;
    return end && passage_has_keys(at, (size_t)(end - at), line);
}

START_TEST(test_every_line_is_in_a_paper)
{
    static const char *const names[] = {"worker.md", "control.md"};
    char *papers[] = {paper_read(names[0]), paper_read(names[1])};
    for (int type = MESSAGE_NONE + 1; type < MESSAGE_TYPES; type++) {
        struct message message = {.type = (enum message_type)type};
        size_t length;
        char *line = message_encode(&message, &length);
        const char *name = message_type_name(message.type);
        /* MESSAGE_DRAINING, which a daemon answers to shoalctl, has no key. */
        ck_assert_msg(paper_has_line(papers[0], name, line) ||
                          paper_has_line(papers[1], name, line) || type == MESSAGE_DRAINING,
                      "no paper names %s with all its keys: %s", name, line);
        free(line);
    }
    free(papers[0]);
    free(papers[1]);
}
END_TEST

START_TEST(test_versions)
{
    char *paper = paper_read("README.md"), row[3][64];
    snprintf(row[0], sizeof(row[0]), "| lines of JSON | %u |\n", MESSAGE_PROTOCOL);
    snprintf(row[1], sizeof(row[1]), "| two rings of fixed entries | %d |\n", ARENA_VERSION);
    snprintf(row[2], sizeof(row[2]), "and a payload | %d |\n", WIRE_VERSION);
    for (int i = 0; i < 3; i++)
        ck_assert_msg(strstr(paper, row[i]) != NULL, "no \"%s\" in README.md", row[i]);
    free(paper);
}
END_TEST

START_TEST(test_missing_keys_are_noticed)
{
    static const char line[] = "{\"type\":\"join\",\"job\":\"rank\",\"rank\":0}";
    ck_assert(paper_has_line("\n| `join` | `job`, `rank` |\n", "join", line));
    ck_assert(paper_has_line("\n`join` has `job`,\n`rank`.\n\n", "join", line));
    ck_assert(!paper_has_line("\n| `join` | `job` |\n`rank`", "join", line));
    ck_assert(!paper_has_line("\n| `leave` | `job`, `rank` |\n", "join", line));
    ck_assert(!paper_has_line("\n`join` has `rank`.\n\n`job`", "join", line));
}
END_TEST

/* --- the arena -------------------------------------------------------------------------------- */

START_TEST(test_offsets_of_the_arena)
{
    char *paper = paper_read("worker.md");
    static const struct {
        size_t offset;
        const char *row;
    } header[] = {
        {offsetof(struct arena_header, version), "\n| 8 | 4 | version, 9 |"},
        {offsetof(struct arena_header, submission_entries), "\n| 12 | 4 | entries of the sub"},
        {offsetof(struct arena_header, completion_entries), "\n| 16 | 4 | entries of the com"},
        {offsetof(struct arena_header, total_bytes), "\n| 24 | 8 | bytes of the arena |"},
        {offsetof(struct arena_header, submission_offset), "\n| 32, 40, 48 | 8 each |"},
        {offsetof(struct arena_header, submission_tail), "\n| 64 | 4 | submission tail"},
        {offsetof(struct arena_header, submission_head), "\n| 128 | 4 | submission head"},
        {offsetof(struct arena_header, completion_tail), "\n| 192 | 4 | completion tail"},
        {offsetof(struct arena_header, completion_head), "\n| 256 | 4 | completion head"},
        {offsetof(struct arena_header, daemon_sleeping), "\n| 320 | 4 | the daemon sleeps"},
        {offsetof(struct arena_header, worker_sleeping), "\n| 384 | 4 | the worker sleeps"},
        {offsetof(struct arena_header, tracing), "\n| 448 | 4 | a trace is taken"},
        {offsetof(struct arena_submission, group), "\n| 4 | 4 | group |"},
        {offsetof(struct arena_submission, request), "\n| 8 | 8 | request"},
        {offsetof(struct arena_submission, sequence), "\n| 16 | 8 | sequence |"},
        {offsetof(struct arena_submission, count), "\n| 24 | 8 | count of elements |"},
        {offsetof(struct arena_submission, in_offset), "\n| 32 | 8 | offset of the data |"},
        {offsetof(struct arena_submission, out_offset), "\n| 40 | 8 | offset of the result |"},
        {offsetof(struct arena_submission, root), "\n| 48 | 4 | root"},
        {offsetof(struct arena_submission, block), "\n| 52 | 4 | block"},
        {offsetof(struct arena_submission, flags), "\n| 56 | 4 | flags"},
        {offsetof(struct arena_submission, priority), "\n| 60 | 4 | priority"},
        {offsetof(struct arena_completion, chunk), "\n| 4 | 4 | chunk |"},
        {offsetof(struct arena_completion, request), "\n| 8 | 8 | request | request |"},
        {offsetof(struct arena_completion, offset), "\n| 16 | 8 | offset of the chunk"},
        {offsetof(struct arena_completion, group), "\n| 4 | 4 | chunk | 0; of an ANY: the rank, or "
                                                   "2^32 - 1; refused: 1 | group |"},
        {offsetof(struct arena_completion, dtype), "\n| 1 | 1 | zero | of a send that is refused"},
        {offsetof(struct arena_completion, count), "\n| 16 | 8 | offset of the chunk, as it was "
                                                   "given | of a send: the other"},
        {offsetof(struct arena_completion, sequence), "\n| 8 | 8 | request | request | sequence |"},
    };
    for (size_t i = 0; i < sizeof(header) / sizeof(header[0]); i++) {
        ck_assert_uint_eq(header[i].offset, strtoul(header[i].row + 3, NULL, 10));
        ck_assert_msg(strstr(paper, header[i].row) != NULL, "worker.md has no row%s",
                      header[i].row);
    }
    free(paper);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("protocol_papers");
    TCase *tests = tcase_create("all");
    tcase_add_test(tests, test_every_line_is_in_a_paper);
    tcase_add_test(tests, test_versions);
    tcase_add_test(tests, test_missing_keys_are_noticed);
    tcase_add_test(tests, test_offsets_of_the_arena);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
