/* The configuration from texts: what is read, what the defaults become, and that no text, however
 * wrong, does harm. Files and their golden answers: test_config_files.c. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config/config.h"
#include "tests/lib/config_assert.h"
#include "tests/lib/suite.h"

#define GOLDEN_FOLDER TEST_SOURCE_DIR "/tests/common/config/files"
#define CONFIG_FOLDER TEST_SOURCE_DIR "/config"

START_TEST(test_defaults)
{
    struct config config;
    struct config empty;
    config_defaults(&config);
    config_assert_good(&empty, "{}");
    config_assert_equal(&config, &empty);
    ck_assert_str_eq(config.node, "localhost");
    ck_assert_uint_eq(config.server_count, 1);
    ck_assert_str_eq(config.servers[0].name, "localhost");
    ck_assert_str_eq(config.servers[0].address, "127.0.0.1");
    ck_assert_uint_eq(config.servers[0].port, 7070);
    ck_assert_uint_eq(config.servers[0].weight, 1);
    ck_assert_uint_eq(config.listen_port, 7070);
    ck_assert_str_eq(config.listen_address, "127.0.0.1");
    ck_assert_str_eq(config.fabric_address, "127.0.0.1");
    ck_assert_str_eq(config.socket_path, "/run/shoal/shoald.sock");
    ck_assert_uint_eq(config.socket_mode, 0660);
    ck_assert_str_eq(config.provider, "auto");
    ck_assert_str_eq(config.isa, "auto");
    ck_assert_uint_eq(config.chunk_bytes, 262144);
    ck_assert_uint_eq(config.least_shard_bytes, 16384);
    ck_assert_uint_eq(config.window_chunks, 16);
    ck_assert_uint_eq(config.window_bytes, 524288);
    ck_assert_uint_eq(config.reduce_threads, 2);
    ck_assert(!config.bind_threads);
    ck_assert_uint_eq(config.memory_bytes, (uint64_t)4 << 30);
    ck_assert_uint_eq(config.arena_bytes, (uint64_t)64 << 30);
    ck_assert_uint_eq(config.pinned_bytes, 256 << 20);
    ck_assert_uint_eq(config.heartbeat_ms, 500);
    ck_assert_uint_eq(config.peer_ms, 3000);
    ck_assert_int_eq(config.log_level, LOG_LEVEL_INFO);
    ck_assert_str_eq(config.secret_file, "");
    ck_assert_str_eq(config.metrics_address, "");
    config_clear(&config);
    config_clear(&empty);
}
END_TEST

START_TEST(test_every_field_is_read)
{
    struct config c;
    config_assert_good(
        &c, "{\"node\": \"y\", \"secret_file\": \"/s\", \"servers\": ["
            "{\"name\": \"x\", \"address\": \"h.example:1\"},"
            "{\"name\": \"y\", \"address\": \"[0:0::1]:65535\", \"weight\": 7}],"
            "\"socket\": {\"path\": \"/x\", \"mode\": \"0711\"},"
            "\"listen\": {\"address\": \"::1\", \"port\": 5},"
            "\"fabric\": {\"provider\": \"tcp;ofi_rxm\", \"address\": \"10.1.2.3\"},"
            "\"data\": {\"chunk_bytes\": 4096, \"least_shard_bytes\": 9,"
            "\"window_chunks\": 3, \"window_bytes\": 77777, \"instruction_set\": \"avx2\","
            "\"reduce_threads\": 0, \"bind_threads\": false},"
            "\"limits\": {\"memory_bytes\": 1125899906842624, \"arena_bytes\": 1048577,"
            "\"pinned_bytes\": 1048578,"
            "\"jobs\": 11, \"workers\": 12, \"groups_per_job\": 13,"
            "\"connections\": 14},"
            "\"timeouts\": {\"heartbeat_ms\": 21, \"peer_ms\": 42, \"join_ms\": 123,"
            "\"group_ms\": 124, \"late_ms\": 25, \"collective_ms\": 27, \"restart_ms\": 28,"
            "\"drain_ms\": 26},"
            "\"log\": {\"level\": \"debug\"},"
            "\"metrics\": {\"address\": \"localhost\", \"port\": 9}}");
    ck_assert_str_eq(c.node, "y");
    ck_assert_uint_eq(c.self, 1);
    ck_assert_str_eq(c.secret_file, "/s");
    ck_assert_str_eq(c.servers[0].address, "h.example");
    ck_assert_uint_eq(c.servers[0].port, 1);
    ck_assert_uint_eq(c.servers[0].weight, 1);
    ck_assert_str_eq(c.servers[1].address, "::1");
    ck_assert_uint_eq(c.servers[1].port, 65535);
    ck_assert_uint_eq(c.servers[1].weight, 7);
    ck_assert_str_eq(c.socket_path, "/x");
    ck_assert_uint_eq(c.socket_mode, 0711);
    ck_assert_str_eq(c.listen_address, "::1");
    ck_assert_uint_eq(c.listen_port, 5);
    ck_assert_str_eq(c.provider, "tcp;ofi_rxm");
    ck_assert_str_eq(c.fabric_address, "10.1.2.3");
    ck_assert_uint_eq(c.chunk_bytes, 4096);
    ck_assert_uint_eq(c.least_shard_bytes, 9);
    ck_assert_uint_eq(c.window_chunks, 3);
    ck_assert_uint_eq(c.window_bytes, 77777);
    ck_assert_str_eq(c.isa, "avx2");
    ck_assert_uint_eq(c.reduce_threads, 0);
    ck_assert(!c.bind_threads);
    ck_assert_uint_eq(c.memory_bytes, (uint64_t)1 << 50);
    ck_assert_uint_eq(c.arena_bytes, 1048577);
    ck_assert_uint_eq(c.pinned_bytes, 1048578);
    ck_assert_uint_eq(c.jobs, 11);
    ck_assert_uint_eq(c.workers, 12);
    ck_assert_uint_eq(c.groups_per_job, 13);
    ck_assert_uint_eq(c.connections, 14);
    ck_assert_uint_eq(c.heartbeat_ms, 21);
    ck_assert_uint_eq(c.peer_ms, 42);
    ck_assert_uint_eq(c.join_ms, 123);
    ck_assert_uint_eq(c.group_ms, 124);
    ck_assert_uint_eq(c.late_ms, 25);
    ck_assert_uint_eq(c.collective_ms, 27);
    ck_assert_uint_eq(c.restart_ms, 28);
    ck_assert_uint_eq(config_late_ms(&c), 25);
    c.collective_ms = 24;
    ck_assert_uint_eq(config_late_ms(&c), 24);
    ck_assert_uint_eq(c.drain_ms, 26);
    ck_assert_int_eq(c.log_level, LOG_LEVEL_DEBUG);
    ck_assert_str_eq(c.metrics_address, "localhost");
    ck_assert_uint_eq(c.metrics_port, 9);
    config_assert_prints_back(&c);
    config_clear(&c);
}
END_TEST

START_TEST(test_dependent_defaults)
{
    static const struct {
        const char *text, *node, *listen, *fabric;
        unsigned port, server_port;
    } cases[] = {
        {"{\"node\": \"n1\"}", "n1", "127.0.0.1", "127.0.0.1", 7070, 7070},
        {"{\"listen\": {\"port\": 9}}", "localhost", "127.0.0.1", "127.0.0.1", 9, 9},
        {"{\"servers\": [{\"name\": \"q\", \"address\": \"127.0.0.1:81\"}]}", "q", "127.0.0.1",
         "127.0.0.1", 81, 81},
        {"{\"listen\": {\"address\": \"::\"}, \"secret_file\": \"/s\"}", "localhost", "::", "::1",
         7070, 7070},
        {"{\"listen\": {\"address\": \"0.0.0.0\", \"port\": 4}, \"secret_file\": \"/s\","
         "\"servers\": [{\"name\": \"q\", \"address\": \"10.0.0.9:81\"}]}",
         "q", "0.0.0.0", "10.0.0.9", 4, 81},
        {"{\"listen\": {\"address\": \"10.0.0.8\"}, \"secret_file\": \"/s\","
         "\"servers\": [{\"name\": \"q\", \"address\": \"10.0.0.9:81\"}]}",
         "q", "10.0.0.8", "10.0.0.8", 81, 81},
    };
    struct config config;
    ck_assert_uint_lt((unsigned)_i, sizeof(cases) / sizeof(cases[0]));
    config_assert_good(&config, cases[_i].text);
    ck_assert_str_eq(config.node, cases[_i].node);
    ck_assert_str_eq(config.servers[0].name, cases[_i].node);
    ck_assert_str_eq(config.listen_address, cases[_i].listen);
    ck_assert_str_eq(config.fabric_address, cases[_i].fabric);
    ck_assert_uint_eq(config.listen_port, cases[_i].port);
    ck_assert_uint_eq(config.servers[0].port, cases[_i].server_port);
    config_assert_prints_back(&config);
    config_clear(&config);
}
END_TEST

/* The most servers that a roster may have, and one more. */
START_TEST(test_roster_limit)
{
    for (int count = CONFIG_SERVERS_MAX; count <= CONFIG_SERVERS_MAX + 1; count++) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);
        fputs("{\"node\": \"n7\", \"limits\": {\"memory_bytes\": 17179869184}, \"servers\": [",
              out);
        for (int i = 0; i < count; i++)
            fprintf(out, "%s{\"name\": \"n%d\", \"address\": \"127.0.0.1:%d\"}", i ? "," : "", i,
                    i + 1);
        fputs("]}", out);
        fclose(out);
        struct config config;
        struct config_problems problems;
        int result = config_parse(&config, text, "roster", &problems);
        if (count == CONFIG_SERVERS_MAX) {
            ck_assert_int_eq(result, 0);
            ck_assert_uint_eq(config.self, 7);
            ck_assert_uint_eq(config.server_count, CONFIG_SERVERS_MAX);
            ck_assert_uint_eq(config.listen_port, 8);
        } else {
            ck_assert_int_eq(result, ERR_CONFIG);
            ck_assert_uint_eq(problems.count, 1);
            ck_assert_ptr_nonnull(strstr(problems.lines[0], "must be an array of 1 to 1024"));
        }
        config_problems_clear(&problems);
        config_clear(&config);
        free(text);
    }
}
END_TEST

/* Nesting down to jansson's own limit and beyond must not overrun anything. */
START_TEST(test_deep_nesting)
{
    for (int depth = 100; depth <= 100000; depth *= 10) {
        char *text = calloc(1, 6 * (size_t)depth + 3);
        ck_assert_ptr_nonnull(text);
        for (int i = 0; i < depth; i++)
            memcpy(text + 5 * (size_t)i, "{\"a\":", 5);
        memcpy(text + 5 * (size_t)depth, "1", 1);
        memset(text + 5 * (size_t)depth + 1, '}', (size_t)depth);
        struct config config;
        struct config_problems problems;
        ck_assert_int_eq(config_parse(&config, text, "deep", &problems), ERR_CONFIG);
        ck_assert_uint_ge(problems.count, 1);
        config_problems_clear(&problems);
        config_clear(&config);
        free(text);
    }
}
END_TEST

static int allocations_left;

static void *failing_malloc(size_t bytes)
{
    return allocations_left-- > 0 ? malloc(bytes) : NULL;
}

/* Every allocation of jansson's fails once: no crash, no leak, and no success with something
 * missing. (Which error is jansson's affair: a token without memory is wrong syntax to it.) */
static void assert_survives_no_memory(const char *text, int outcome)
{
    int failures = 0;
    json_set_alloc_funcs(failing_malloc, free);
    for (int i = 0, result = 0;; i++) {
        struct config config;
        struct config_problems problems;
        ck_assert_int_lt(i, 10000);
        allocations_left = i;
        result = config_parse(&config, text, "memory", &problems);
        bool failed = allocations_left < 0;
        ck_assert_msg(failed ? result == ERR_MEMORY || result == ERR_CONFIG : result == outcome,
                      "allocation %d: %d, %s", i, result,
                      problems.count ? problems.lines[0] : "no problem");
        ck_assert(result != ERR_CONFIG || problems.count > 0);
        config_clear(&config);
        config_problems_clear(&problems);
        failures += result == ERR_MEMORY;
        if (!failed)
            break;
    }
    ck_assert_int_gt(failures, 0);
    json_set_alloc_funcs(malloc, free);
}

START_TEST(test_comments)
{
    static const char text[] = "// before\n"
                               "{\n"
                               "\t// \"node\": \"b\",\n"
                               "    \"socket\": {\"path\": \"/run//a\"}\n"
                               "    //\n"
                               "}\n"
                               "//";
    struct config config;
    config_assert_good(&config, text);
    ck_assert_str_eq(config.socket_path, "/run//a");
    ck_assert_str_eq(config.node, "localhost");
    config_clear(&config);

    /* Lines and columns stay what they are; a comment has a line of its own. */
    struct config_problems problems;
    static const char behind[] = "// one\n{\n  // two\n  \"log\": {} // three\n}\n";
    ck_assert_int_eq(config_parse(&config, behind, "c.json", &problems), ERR_CONFIG);
    ck_assert_uint_eq(problems.count, 1);
    ck_assert_msg(strstr(problems.lines[0], "c.json:4:"), "%s", problems.lines[0]);
    config_problems_clear(&problems);
    static const char twice[] = "// one\n{\n  \"node\": \"a\",\n  // two\n  \"node\": \"b\"\n}\n";
    ck_assert_int_eq(config_parse(&config, twice, "c.json", &problems), ERR_CONFIG);
    ck_assert_msg(strstr(problems.lines[0], "c.json:5:3: /node: key given twice, first at line 3"),
                  "%s", problems.lines[0]);
    config_problems_clear(&problems);
}
END_TEST

START_TEST(test_no_memory)
{
    char *example = config_file_read(CONFIG_FOLDER "/full.json");
    char *wrong = config_file_read(GOLDEN_FOLDER "/everything.json");
    ck_assert(example && wrong);
    assert_survives_no_memory(example, 0);
    assert_survives_no_memory(wrong, ERR_CONFIG);
    free(example);
    free(wrong);
}
END_TEST

START_TEST(test_no_memory_to_print)
{
    struct config config;
    config_defaults(&config);
    json_set_alloc_funcs(failing_malloc, free);
    static char *(*const makers[])(void) = {config_schema, config_reference, config_manual};
    for (int maker = -1; maker < 3; maker++) {
        char *text = NULL;
        int failures = 0;
        for (int i = 0; !text; i++) {
            ck_assert_int_lt(i, 10000);
            allocations_left = i;
            text = maker < 0 ? config_print(&config) : makers[maker]();
            failures += !text;
        }
        ck_assert_int_gt(failures, 0);
        free(text);
    }
    json_set_alloc_funcs(malloc, free);
    config_clear(&config);
}
END_TEST

static uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* One small change: a byte, a run removed, or a run copied to somewhere else. */
static size_t mutate(char *text, size_t length, size_t room, uint64_t *state)
{
    static const char bytes[] = "{}[]\",:\\ 0123456789eE.-+tfnau/~\n\x01\x7f\xc3\xa9";
    size_t at = random_next(state) % length;
    size_t run = 1 + random_next(state) % 24;
    if (run > length - at)
        run = length - at;
    switch (random_next(state) % 4) {
    case 0:
        text[at] = bytes[random_next(state) % (sizeof(bytes) - 1)];
        return length;
    case 1:
        text[at] = (char)(1 + random_next(state) % 255);
        return length;
    case 2:
        if (run == length)
            return length;
        memmove(text + at, text + at + run, length - at - run + 1);
        return length - run;
    default:
        if (length + run + 1 > room)
            return length;
        char copy[32];
        size_t to = random_next(state) % length;
        memcpy(copy, text + at, run);
        memmove(text + to + run, text + to, length - to + 1);
        memcpy(text + to, copy, run);
        return length + run;
    }
}

START_TEST(test_mutations)
{
    char *example = config_file_read(CONFIG_FOLDER "/full.json");
    ck_assert_ptr_nonnull(example);
    size_t room = strlen(example) + 512;
    char *text = malloc(room);
    uint64_t state = 0x9e3779b97f4a7c15u + (uint64_t)_i;
    int good = 0, bad = 0;
    for (int round = 0; round < 1000; round++) {
        strcpy(text, example);
        size_t length = strlen(text);
        for (uint64_t i = 0, changes = 1 + random_next(&state) % 4; i < changes; i++)
            length = mutate(text, length, room, &state);
        struct config config;
        struct config_problems problems;
        int result = config_parse(&config, text, "mutation", &problems);
        if (result == 0) {
            ck_assert_uint_eq(problems.count, 0);
            config_assert_prints_back(&config);
            good++;
        } else {
            ck_assert_int_eq(result, ERR_CONFIG);
            ck_assert_uint_gt(problems.count, 0);
            for (uint32_t i = 0; i < problems.count; i++) {
                ck_assert_int_eq(strncmp(problems.lines[i], "mutation:", 9), 0);
                ck_assert_ptr_null(strchr(problems.lines[i], '\n'));
            }
            bad++;
        }
        config_clear(&config);
        config_problems_clear(&problems);
    }
    /* The mutations are of both kinds, or this test tests nothing. */
    ck_assert_int_gt(good, 0);
    ck_assert_int_gt(bad, 0);
    free(text);
    free(example);
}
END_TEST

/* A problem is one line, also when the bad token has a line break in it. */
START_TEST(test_problem_is_one_line)
{
    struct config config;
    struct config_problems problems;
    ck_assert_int_eq(config_parse(&config, "{\"node\": \"a\\\nb\"}", "a\nb", &problems),
                     ERR_CONFIG);
    ck_assert_uint_eq(problems.count, 1);
    ck_assert_ptr_eq(strstr(problems.lines[0], "a\\u000ab:2:"), problems.lines[0]);
    ck_assert_ptr_null(strchr(problems.lines[0], '\n'));
    config_problems_clear(&problems);
    config_clear(&config);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("config");
    TCase *texts = tcase_create("texts");
    tcase_set_timeout(texts, 60);
    tcase_add_test(texts, test_defaults);
    tcase_add_test(texts, test_every_field_is_read);
    tcase_add_loop_test(texts, test_dependent_defaults, 0, 6);
    tcase_add_test(texts, test_problem_is_one_line);
    tcase_add_test(texts, test_roster_limit);
    tcase_add_test(texts, test_deep_nesting);
    tcase_add_test(texts, test_comments);
    tcase_add_test(texts, test_no_memory);
    tcase_add_test(texts, test_no_memory_to_print);
    tcase_add_loop_test(texts, test_mutations, 0, 4);
    suite_add_tcase(suite, texts);
    return suite_main(suite);
}
