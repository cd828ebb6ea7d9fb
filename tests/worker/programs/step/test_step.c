/* What Slurm says of a step, what its nodes tell each other, and the configuration that follows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config/config.h"
#include "tests/lib/suite.h"
#include "worker/programs/step/step.h"

static void set(const char *name, const char *value)
{
    ck_assert_int_eq(value ? setenv(name, value, 1) : unsetenv(name), 0);
}

static void setup(void)
{
    set("SLURM_JOB_ID", "4711");
    set("SLURM_STEP_ID", "2");
    set("SLURM_NODEID", "1");
    set("SLURM_STEP_NUM_NODES", "3");
    set("SLURM_STEP_NODELIST", "gpu[03-07,12],cpu1");
    set("SHOAL_STEP_PORT", NULL);
    set("SHOAL_TIMEOUT_MS", NULL);
}

static struct step read_step(void)
{
    struct step step;
    struct error error;
    ck_assert_msg(step_read(&step, &error) == 0, "%s", error.text);
    return step;
}

START_TEST(test_read)
{
    struct step step = read_step();
    ck_assert_str_eq(step.name, "slurm-4711-2");
    ck_assert_uint_eq(step.node, 1);
    ck_assert_uint_eq(step.nodes, 3);
    ck_assert_str_eq(step.first_host, "gpu03");
    ck_assert_uint_eq(step.port, 20000 + (4711 * 16 + 2) % 12000);
    ck_assert_uint_eq(step.timeout_ms, 300000);
    set("SHOAL_STEP_PORT", "4242");
    set("SHOAL_TIMEOUT_MS", "2000000000"); /* the library's most */
    ck_assert_uint_eq(read_step().timeout_ms, 2000000000);
    set("SHOAL_TIMEOUT_MS", "5000");
    step = read_step();
    ck_assert_uint_eq(step.port, 4242);
    ck_assert_uint_eq(step.timeout_ms, 5000);
    /* The next step of a job, and the first of the next job, meet elsewhere. */
    set("SHOAL_STEP_PORT", NULL);
    uint16_t port = read_step().port;
    set("SLURM_STEP_ID", "3");
    ck_assert_uint_ne(read_step().port, port);
    /* One node needs no list. */
    set("SLURM_STEP_NUM_NODES", "1");
    set("SLURM_NODEID", "0");
    set("SLURM_STEP_NODELIST", NULL);
    ck_assert_str_eq(read_step().first_host, "");
}
END_TEST

static const struct {
    const char *name, *value, *words;
} wrong[] = {
    {"SLURM_JOB_ID", NULL, "SLURM_JOB_ID is not set"},
    {"SLURM_JOB_ID", "-1", "SLURM_JOB_ID"},
    {"SLURM_STEP_ID", "x", "SLURM_STEP_ID"},
    {"SLURM_NODEID", "3", "SLURM_NODEID"},
    {"SLURM_STEP_NUM_NODES", "0", "SLURM_STEP_NUM_NODES"},
    {"SLURM_STEP_NUM_NODES", "1000000", "SLURM_STEP_NUM_NODES"},
    {"SLURM_STEP_NODELIST", NULL, "SLURM_STEP_NODELIST is not set"},
    {"SLURM_STEP_NODELIST", "gpu[03", "no list of hosts"},
    {"SHOAL_STEP_PORT", "65536", "SHOAL_STEP_PORT"},
    {"SHOAL_TIMEOUT_MS", "0", "SHOAL_TIMEOUT_MS"},
};

START_TEST(test_read_wrong)
{
    struct step step;
    struct error error;
    set(wrong[_i].name, wrong[_i].value);
    ck_assert_int_eq(step_read(&step, &error), ERR_INVALID);
    ck_assert_msg(strstr(error.text, wrong[_i].words), "no \"%s\" in: %s", wrong[_i].words,
                  error.text);
}
END_TEST

START_TEST(test_first_host)
{
    static const char *const hosts[][2] = {{"n0", "n0"},         {"n0,n1", "n0"},
                                           {"n[0-1]", "n0"},     {"n[007-010]", "n007"},
                                           {"n[3,5]x,y", "n3x"}, {"r[1-2]n[4-5]", "r1n4"},
                                           {"a.b-c,d", "a.b-c"}, {"r1-n[5,7-9],q", "r1-n5"}};
    char host[STEP_HOST_BYTES], longest[STEP_HOST_BYTES + 1];
    struct error error;
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        ck_assert_int_eq(step_first_host(hosts[i][0], host, &error), 0);
        ck_assert_str_eq(host, hosts[i][1]);
    }
    ck_assert_int_eq(step_first_host("", host, &error), ERR_INVALID);
    ck_assert_int_eq(step_first_host(",n1", host, &error), ERR_INVALID);
    memset(longest, 'x', sizeof(longest));
    longest[STEP_HOST_BYTES] = 0;
    ck_assert_int_eq(step_first_host(longest, host, &error), ERR_INVALID);
    ck_assert_int_eq(step_first_host(longest + 1, host, &error), 0);
}
END_TEST

START_TEST(test_coming)
{
    static const char *const bad[] = {
        "",
        "slurm-4711-2",
        "slurm-4711-3 1 10.0.0.1:5",
        "slurm-4711-2 0 10.0.0.1:5", /* the first node comes to nobody */
        "slurm-4711-2 3 10.0.0.1:5",
        "slurm-4711-2 1 10.0.0.1",
        "slurm-4711-2 1 10.0.0.1:0",
        "slurm-4711-2 1 10.0.0:5",
        "slurm-4711-2 1 host:5",
        "slurm-4711-2  1 10.0.0.1:5",
        "slurm-4711-2 1 10.0.0.1:5 more",
        "slurm-4711-2 1 10.0.0.1:5000000000000000000000000000",
    };
    struct step step = read_step();
    struct error error;
    char text[256], address[STEP_ADDRESS_BYTES];
    uint32_t node = 0;
    step_coming_write(&step, "10.0.0.2:4711", text, sizeof(text));
    ck_assert_int_eq(step_coming_read(&step, text, &node, address, &error), 0);
    ck_assert_uint_eq(node, 1);
    ck_assert_str_eq(address, "10.0.0.2:4711");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_msg(step_coming_read(&step, bad[i], &node, address, &error) == ERR_PROTOCOL,
                      "taken: %s", bad[i]);
}
END_TEST

static void make_roster(struct step_roster *roster)
{
    ck_assert_int_eq(step_roster_init(roster, 3, NULL), 0);
    memset(roster->secret, 'a', FRESH_SECRET_BYTES - 1);
    for (uint32_t i = 0; i < 3; i++)
        snprintf(roster->addresses[i], STEP_ADDRESS_BYTES, "10.0.0.%u:%u", i + 1, 7000 + i);
}

START_TEST(test_roster)
{
    struct step step = read_step();
    struct step_roster roster, read;
    struct error error;
    make_roster(&roster);
    ck_assert_int_eq(step_roster_init(&read, 3, NULL), 0);
    char *text = step_roster_write(&step, &roster);
    ck_assert_int_eq(step_roster_read(&step, text, &read, &error), 0);
    ck_assert_str_eq(read.secret, roster.secret);
    ck_assert_str_eq(read.addresses[2], "10.0.0.3:7002");
    /* Every shorter one lacks something, and none is longer. */
    char *part = strdup(text);
    for (size_t length = strlen(text) - 4; length > 0; length--) {
        part[length - 1] = 0;
        ck_assert_int_eq(step_roster_read(&step, part, &read, &error), ERR_PROTOCOL);
    }
    char more[512];
    snprintf(more, sizeof(more), "%s 10.0.0.4:1", text);
    ck_assert_int_eq(step_roster_read(&step, more, &read, &error), ERR_PROTOCOL);
    *strchr(text, 'a') = 'A';
    ck_assert_int_eq(step_roster_read(&step, text, &read, &error), ERR_PROTOCOL);
    free(part);
    free(text);
    step_roster_clear(&roster);
    step_roster_clear(&read);
}
END_TEST

START_TEST(test_config)
{
    struct step step = read_step();
    struct step_roster roster;
    struct config config;
    struct config_problems problems = {0};
    make_roster(&roster);
    char *text = step_config_text(&step, &roster, "/tmp/folder", 1 << 21);
    ck_assert_msg(config_parse(&config, text, "it", &problems) == 0, "%s",
                  problems.count ? problems.lines[0] : "out of memory");
    ck_assert_str_eq(config.node, "node1");
    ck_assert_str_eq(config.socket_path, "/tmp/folder/shoald.sock");
    ck_assert_str_eq(config.listen_address, "10.0.0.2");
    ck_assert_str_eq(config.secret_file, "/tmp/folder/secret");
    ck_assert_uint_eq(config.server_count, 3);
    config_clear(&config);
    free(text);
    step_roster_clear(&roster);
}
END_TEST

static Suite *step_suite(void)
{
    Suite *suite = suite_create("step");
    TCase *tests = tcase_create("step");
    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_test(tests, test_read);
    tcase_add_loop_test(tests, test_read_wrong, 0, (int)(sizeof(wrong) / sizeof(wrong[0])));
    tcase_add_test(tests, test_first_host);
    tcase_add_test(tests, test_coming);
    tcase_add_test(tests, test_roster);
    tcase_add_test(tests, test_config);
    suite_add_tcase(suite, tests);
    return suite;
}

int main(void)
{
    return suite_main(step_suite());
}
