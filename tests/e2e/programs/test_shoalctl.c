/* shoalctl against real daemons, and against things that are none. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/format/message.h"
#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

static char *directory;

static void setup(void)
{
    directory = suite_make_directory();
}

static void teardown(void)
{
    suite_remove_directory(directory);
}

static struct process *ask(const char *path, const char *command)
{
    const char *argv[] = {CLUSTER_BIN "shoalctl", "--socket", path, command, NULL};
    return process_run(argv);
}

/* Something that answers the first line with `text`, in a process of its own. */
static pid_t impostor_start(const char *path, const char *text)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(listener, 4), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = accept(listener, NULL, NULL);
        char line[512];
        if (read(fd, line, sizeof(line)) > 0 && send(fd, text, strlen(text), MSG_NOSIGNAL) > 0)
            while (read(fd, line, sizeof(line)) > 0)
                ;
        _exit(0);
    }
    close(listener);
    return pid;
}

static void impostor_check(const char *command, const char *text, const char *expected)
{
    char path[108];
    snprintf(path, sizeof(path), "%.80s/impostor.sock", directory);
    pid_t pid = impostor_start(path, text);
    struct process *process = ask(path, command);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 1);
    ck_assert_msg(strstr(process_errors(process), expected) != NULL, "no \"%s\" in %s", expected,
                  process_errors(process));
    ck_assert_ptr_nonnull(strstr(process_errors(process), path));
    process_free(process);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    unlink(path);
}

START_TEST(test_no_daemon)
{
    struct process *process = ask("/nonexistent/shoald.sock", "status");
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 1);
    ck_assert_str_eq(
        process_errors(process),
        "shoalctl: no daemon at /nonexistent/shoald.sock: No such file or directory\n");
    ck_assert_str_eq(process_output(process), "");
    process_free(process);
}
END_TEST

START_TEST(test_impostors)
{
    impostor_check("status", "HTTP/1.0 400 Bad Request\r\n", "is no shoald");
    impostor_check("status", "[1,2]\n", "is no shoald");
    impostor_check("status", "{\"type\":\"hello\",\"protocol\":9,\"node\":\"a\"}\n",
                   "speaks protocol 9");
    impostor_check("status", "{\"type\":\"error\",\"code\":-8,\"text\":\"not\\u001b you\"}\n",
                   "not\\u001b you");
}
END_TEST

/* A daemon with several jobs wants one to be named. */
START_TEST(test_why_which_job)
{
    char said[256];
    snprintf(said, sizeof(said),
             "{\"type\":\"hello\",\"protocol\":%u,\"node\":\"a\"}\n"
             "{\"type\":\"status\",\"jobs\":[{\"name\":\"first\"},{\"name\":\"other\"}]}\n",
             MESSAGE_PROTOCOL);
    impostor_check("why", said, "has 2 jobs; name one of them: first, other");
}
END_TEST

/* A daemon that is stopped: connections wait until its backlog is full, then connect itself does.
 */
START_TEST(test_daemon_that_does_not_answer)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%.80s/stopped.sock", directory);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(listener, 0), 0);
    struct process *processes[3];
    for (int i = 0; i < 3; i++)
        processes[i] = ask(address.sun_path, "status");
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(process_wait(processes[i], CLUSTER_PATIENCE_MS), 1);
        ck_assert_msg(strstr(process_errors(processes[i]), "does not answer") != NULL, "%s",
                      process_errors(processes[i]));
        process_free(processes[i]);
    }
    close(listener);
}
END_TEST

static void usage(const char *const *words, const char *expected)
{
    const char *argv[8] = {CLUSTER_BIN "shoalctl"};
    for (int i = 0; words[i]; i++)
        argv[1 + i] = words[i];
    struct process *process = process_run(argv);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 2);
    /* A line that says what is wrong, which the whole help would hide. */
    const char *line = process_errors(process);
    size_t length = strcspn(line, "\n");
    const char *at = strstr(line, expected);
    ck_assert_msg(at && at < line + length, "no \"%s\" in %s", expected, line);
    ck_assert_str_eq(line + length, "\nTry 'shoalctl --help'.\n");
    process_free(process);
}

START_TEST(test_usage)
{
    usage((const char *[]){NULL}, "which command?");
    usage((const char *[]){"stop", NULL}, "stop");
    usage((const char *[]){"status", "jobs", NULL}, "jobs");
    usage((const char *[]){"status", "--bogus", NULL}, "unknown option --bogus");
    usage((const char *[]){"status", "--wait", NULL}, "--wait is for drain");
    usage((const char *[]){"jobs", "--watch", NULL}, "--watch is for status");
    usage((const char *[]){"drain", "--json", NULL}, "--json is for");
    usage((const char *[]){"status", "--watch=never", NULL}, "never");
    usage((const char *[]){"--socket", NULL}, "--socket needs a value");
    usage((const char *[]){"trace", NULL}, "which job is to be traced?");
    usage((const char *[]){"trace", "a", "b", NULL}, "unknown command or argument: b");
    usage((const char *[]){"trace", "a", "--seconds", "61", NULL},
          "--seconds: must be 0.001 to 60");
    usage((const char *[]){"status", "--seconds", "1", NULL}, "--seconds and --output are for");
    usage((const char *[]){"jobs", "--output", "x", NULL}, "--seconds and --output are for");
    usage((const char *[]){"trace", "a", "--json", NULL}, "--json is for");
}
END_TEST

static bool all_peers_up(const json_t *status)
{
    size_t i;
    const json_t *peer;
    json_array_foreach(json_object_get(status, "peers"), i, peer)
    {
        const char *state = json_string_value(json_object_get(peer, "state"));
        if (!state || strcmp(state, "up"))
            return false;
    }
    return json_array_size(json_object_get(status, "peers")) == 2;
}

START_TEST(test_status_of_daemons)
{
    struct cluster *cluster = cluster_start(3, NULL);
    ck_assert(cluster_wait_status(cluster, 1, all_peers_up, CLUSTER_PATIENCE_MS));
    struct process *process = cluster_shoalctl(cluster, 1, (const char *[]){"status", NULL});
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    const char *text = process_output(process);
    ck_assert_ptr_nonnull(strstr(text, "node node1"));
    ck_assert_ptr_nonnull(strstr(text, "node0"));
    ck_assert_ptr_nonnull(strstr(text, "node2"));
    ck_assert_ptr_nonnull(strstr(text, "tcp"));
    ck_assert_ptr_nonnull(strstr(text, "no jobs"));
    process_free(process);
    json_t *status = cluster_status(cluster, 2);
    ck_assert_int_eq(json_integer_value(json_object_get(status, "pid")),
                     cluster->nodes[2].daemon->pid);
    ck_assert_int_gt(
        json_integer_value(json_object_get(json_object_get(status, "memory"), "limit_bytes")), 0);
    json_decref(status);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

/* An answer that could not be written is no success: a script would take half a document for all.
 */
START_TEST(test_full_disk)
{
    if (access("/dev/full", W_OK) != 0) {
        suite_skip("full_disk", "there is no /dev/full");
        return;
    }
    static const char *const commands[] = {"status", "status --json", "jobs", "jobs --json",
                                           "status --watch=0.1"};
    struct cluster *cluster = cluster_start(1, NULL);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        char command[1024];
        snprintf(command, sizeof(command), "exec %s --socket '%s' %s > /dev/full",
                 CLUSTER_BIN "shoalctl", cluster->nodes[0].socket_path, commands[i]);
        const char *argv[] = {"/bin/sh", "-c", command, NULL};
        struct process *process = process_run(argv);
        ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 1);
        ck_assert_ptr_nonnull(strstr(process_errors(process), "No space left on device"));
        process_free(process);
    }
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

static bool one_job_runs(const json_t *status)
{
    const json_t *job = json_array_get(json_object_get(status, "jobs"), 0);
    return json_integer_value(json_object_get(job, "collectives")) > 0;
}

START_TEST(test_jobs)
{
    struct cluster *cluster = cluster_start(2, NULL);
    char file[512];
    snprintf(file, sizeof(file), "%s/stop", directory);
    const char *argv[] = {CLUSTER_HELPER, "loop", file, NULL};
    struct process *workers[4];
    cluster_job(cluster, "shown", 2, argv, workers);
    ck_assert(cluster_wait_status(cluster, 0, one_job_runs, CLUSTER_PATIENCE_MS));
    struct process *process = cluster_shoalctl(cluster, 0, (const char *[]){"jobs", NULL});
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    ck_assert_ptr_nonnull(strstr(process_output(process), "shown"));
    ck_assert_ptr_nonnull(strstr(process_output(process), "0-3"));
    process_free(process);
    process = cluster_shoalctl(cluster, 0, (const char *[]){"jobs", "--json", NULL});
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    json_t *jobs = json_loads(process_output(process), 0, NULL);
    ck_assert_uint_eq(json_array_size(jobs), 1);
    const json_t *job = json_array_get(jobs, 0);
    ck_assert_str_eq(json_string_value(json_object_get(job, "name")), "shown");
    ck_assert_int_eq(json_integer_value(json_object_get(job, "world_size")), 4);
    json_decref(jobs);
    process_free(process);
    fclose(fopen(file, "w"));
    ck_assert_int_eq(cluster_job_end(workers, 4), 0);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    cluster_free(cluster);
}
END_TEST

START_TEST(test_watch)
{
    struct cluster *cluster = cluster_start(1, NULL);
    struct process *process =
        cluster_shoalctl(cluster, 0, (const char *[]){"status", "--json", "--watch", "0.1", NULL});
    /* Three documents, a line each; then the daemon ends, and so does the watching. */
    int64_t until = process_now_ms() + CLUSTER_PATIENCE_MS;
    int lines = 0;
    while (lines < 3 && process_now_ms() < until && process_wait(process, 20) == -1) {
        lines = 0;
        for (const char *c = process_output(process); *c; c++)
            lines += *c == '\n';
    }
    ck_assert_int_ge(lines, 3);
    ck_assert_int_eq(cluster_stop(cluster), 0);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 1);
    process_free(process);
    cluster_free(cluster);
}
END_TEST

START_TEST(test_drain)
{
    struct cluster *cluster = cluster_start(1, NULL);
    struct process *process =
        cluster_shoalctl(cluster, 0, (const char *[]){"drain", "--wait", NULL});
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    ck_assert_ptr_nonnull(strstr(process_output(process), "is draining"));
    ck_assert_ptr_nonnull(strstr(process_output(process), "has ended"));
    process_free(process);
    ck_assert_int_eq(process_wait(cluster->nodes[0].daemon, CLUSTER_PATIENCE_MS), 0);
    cluster_free(cluster);
}
END_TEST

/* No daemon is needed, and no file is overwritten. */
START_TEST(test_secret)
{
    char path[300], text[200] = "", hint[400];
    snprintf(path, sizeof(path), "%s/secret", directory);
    const char *argv[] = {CLUSTER_BIN "shoalctl", "secret", path, NULL};
    const char *spoken[] = {CLUSTER_BIN "shoalctl", "secret", NULL};
    for (int i = 0; i < 2; i++) {
        struct process *process = process_run(argv);
        ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), i);
        snprintf(hint, sizeof(hint), "shoalctl: %s is there, and is not overwritten\n", path);
        ck_assert_str_eq(process_errors(process), i ? hint : "");
        ck_assert_str_eq(process_output(process), "");
        process_free(process);
    }
    FILE *file = fopen(path, "r");
    struct stat status;
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fstat(fileno(file), &status), 0);
    ck_assert_uint_eq(status.st_mode & 07777, 0600);
    ck_assert_uint_eq(fread(text, 1, sizeof(text) - 1, file), 65);
    fclose(file);
    ck_assert_uint_eq(strspn(text, "0123456789abcdef"), 64);
    struct process *process = process_run(spoken);
    ck_assert_int_eq(process_wait(process, CLUSTER_PATIENCE_MS), 0);
    ck_assert_uint_eq(strlen(process_output(process)), 65);
    ck_assert_str_ne(process_output(process), text);
    process_free(process);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoalctl");
    TCase *tests = tcase_create("shoalctl");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, test_no_daemon);
    tcase_add_test(tests, test_impostors);
    tcase_add_test(tests, test_why_which_job);
    tcase_add_test(tests, test_daemon_that_does_not_answer);
    tcase_add_test(tests, test_usage);
    tcase_add_test(tests, test_status_of_daemons);
    tcase_add_test(tests, test_full_disk);
    tcase_add_test(tests, test_jobs);
    tcase_add_test(tests, test_watch);
    tcase_add_test(tests, test_drain);
    tcase_add_test(tests, test_secret);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
