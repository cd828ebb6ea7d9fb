/* shoalrun --page: the address that it prints is one of a page, whatever daemons it starts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/cluster.h"
#include "tests/lib/stop_file.h"
#include "tests/lib/suite.h"

#define ADDRESS "shoalrun: the job's page is at http://127.0.0.1:"

static struct stop_file stop;
static uint16_t nodes_port; /* where the daemons of several machines listen; 0: as they do */

static void setup(void)
{
    stop_file_create(&stop);
    nodes_port = 0;
}

static void teardown(void)
{
    stop_file_free(&stop);
}

static void expect_answer(uint16_t port, const char *path, const char *piece)
{
    char request[64];
    snprintf(request, sizeof(request), "GET %s HTTP/1.0\r\n\r\n", path);
    char *answer = cluster_http(port, request);
    ck_assert_int_eq(strncmp(answer, "HTTP/1.0 200 ", 13), 0);
    ck_assert_msg(strstr(answer, piece) != NULL, "no %s in %.400s", piece, answer);
    free(answer);
}

/* The words of shoalrun before the command; and a rank that waits for the stop file. */
static struct process *begin(const char *words)
{
    char line[256], variable[600], home[600], port[32];
    const char *argv[40] = {CLUSTER_BIN "shoalrun"};
    size_t count = 1;
    char *rest = NULL;
    snprintf(line, sizeof(line), "%s", words);
    for (char *word = strtok_r(line, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[count++] = word;
    static const char *const rank[] = {"-n", "1",  "--",
                                       "sh", "-c", "until [ -e \"$STOP\" ]; do sleep 0.05; done"};
    memcpy(&argv[count], rank, sizeof(rank));
    snprintf(variable, sizeof(variable), "STOP=%s", stop.path);
    snprintf(home, sizeof(home), "HOME=%s", stop.directory);
    snprintf(port, sizeof(port), "SHOAL_PORT=%u", nodes_port);
    const char *environment[] = {variable, "SHOAL_SOCKET=", home, nodes_port ? port : NULL, NULL};
    return process_start(&(struct process_start){
        .argv = argv, .environment = environment, .directory = stop.directory});
}

/* `address`: the key and its comma, or "". */
static void write_config(const char *address, unsigned port)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/more.json", stop.directory);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "{\"metrics\":{%s\"port\":%u}}", address, port);
    fclose(file);
}

/* The page answers at once, and not only after a while. */
static void check_page(const char *words, const char *jobs)
{
    struct process *process = begin(words);
    ck_assert_msg(process_wait_text(process, ADDRESS, CLUSTER_PATIENCE_MS), "%s",
                  process_errors(process));
    ck_assert(process_wait_text(process, "/\n", CLUSTER_PATIENCE_MS));
    const char *said = strstr(process_errors(process), ADDRESS);
    uint16_t port = (uint16_t)strtoul(said + strlen(ADDRESS), NULL, 10);
    expect_answer(port, "/", "<!doctype html>");
    expect_answer(port, "/status.json", nodes_port ? "\"node\":\"127.0.0.1\"" : "\"node\":\"");
    expect_answer(port, "/status.json", jobs);
    stop_file_raise(&stop);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    process_free(process);
    stop_file_withdraw(&stop);
}

START_TEST(test_it_works)
{
    check_page("--page --nodes 1", "\"peers\":[]");
    check_page("--nodes 2 --page", "\"name\":\"node1\"");
    check_page("--page --nodes 3 --cpu-nodes 1", "\"name\":\"cpu0\"");
}
END_TEST

/* Whoever gives a port gives it to the first daemon: the second could not have it too. */
START_TEST(test_a_given_port)
{
    static const char *const addresses[] = {"\"address\":\"127.0.0.1\",", "",
                                            "\"address\":\"0.0.0.0\","};
    char expected[96];
    for (size_t i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
        unsigned port = cluster_free_port();
        write_config(addresses[i], port);
        snprintf(expected, sizeof(expected), "\"page\":\"http://127.0.0.1:%u/\"", port);
        check_page("--page --nodes 2 --config more.json", expected);
    }
    write_config(addresses[0], cluster_free_port());
    stop_file_raise(&stop);
    struct process *process = begin("--nodes 2 --config more.json");
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    ck_assert_ptr_null(strstr(process_errors(process), "page"));
    process_free(process);
}
END_TEST

/* All are started by one line: the first machine's shoalrun alone says where the page is, and the
 * page shows the others. */
START_TEST(test_of_several_machines)
{
    nodes_port = cluster_free_port();
    struct process *other = begin("--page --hosts 127.0.0.1,127.0.0.2 --node-rank 1");
    check_page("--page --hosts 127.0.0.1,127.0.0.2 --node-rank 0", "\"name\":\"127.0.0.2\"");
    stop_file_raise(&stop);
    ck_assert_msg(process_wait(other, CLUSTER_PATIENCE_MS) == 0, "%s", process_errors(other));
    ck_assert_ptr_null(strstr(process_errors(other), "page"));
    process_free(other);
}
END_TEST

/* An error says who has no page; and of a daemon that cannot start, why. */
START_TEST(test_there_is_none)
{
    char words[256];
    struct cluster *cluster = cluster_start(1, NULL);
    snprintf(words, sizeof(words), "--page --socket %s", cluster->nodes[0].socket_path);
    struct process *process = begin(words);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 1);
    ck_assert_ptr_nonnull(strstr(process_errors(process), "serves none; set metrics.port"));
    ck_assert_ptr_nonnull(strstr(process_errors(process), cluster->nodes[0].socket_path));
    process_free(process);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
    write_config("\"address\":7,", 1);
    process = begin("--page --config more.json");
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 1);
    ck_assert_ptr_nonnull(strstr(process_errors(process), "metrics/address"));
    process_free(process);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoalrun_page");
    TCase *tests = tcase_create("shoalrun_page");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_it_works);
    tcase_add_test(tests, test_a_given_port);
    tcase_add_test(tests, test_of_several_machines);
    tcase_add_test(tests, test_there_is_none);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
