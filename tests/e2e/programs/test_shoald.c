/* The daemon as an executable: its options, what it says of wrong configurations, its sockets and
 * signals, and what it tells the service manager. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

#define SHOALD CLUSTER_BIN "shoald"
#define STARTED "shoald 0.1.0 on node"

static char *directory;
static char socket_path[108], config_path[256];

static void setup(void)
{
    directory = suite_make_directory();
    snprintf(socket_path, sizeof(socket_path), "%.80s/shoald.sock", directory);
    snprintf(config_path, sizeof(config_path), "%s/shoald.json", directory);
}

static void teardown(void)
{
    suite_remove_directory(directory);
}

static void file_write(const char *path, const char *text, mode_t mode)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(chmod(path, mode), 0);
}

/* The file with the socket's path and these further keys of the outermost object. */
static void configure_socket(const char *socket_keys, const char *more)
{
    char text[1024];
    snprintf(text, sizeof(text),
             "{\"socket\": {\"path\": \"%s\"%s}, \"fabric\": {\"provider\": \"tcp\"}%s}",
             socket_path, socket_keys, more);
    file_write(config_path, text, 0644);
}

static void configure(const char *more)
{
    configure_socket("", more);
}

static int tcp_listen(uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

/* With the configuration that is written, on a control port of its own. */
static struct process *daemon_begin(const char *const *environment)
{
    char tcp_text[16];
    uint16_t port;
    int tcp = tcp_listen(&port);
    snprintf(tcp_text, sizeof(tcp_text), "%d", tcp);
    const char *argv[] = {SHOALD, "--config", config_path, "--listen-fd", tcp_text, NULL};
    struct process_start start = {
        .argv = argv, .environment = environment, .inherited = &tcp, .inherited_count = 1};
    struct process *daemon = process_start(&start);
    close(tcp);
    return daemon;
}

static void wait_text(struct process *daemon, const char *text)
{
    ck_assert_msg(process_wait_text(daemon, text, CLUSTER_PATIENCE_MS), "no \"%s\" in: %s", text,
                  process_errors(daemon));
}

static struct process *daemon_start(void)
{
    struct process *daemon = daemon_begin(NULL);
    wait_text(daemon, STARTED);
    return daemon;
}

static void ends(struct process *process, int code)
{
    int got = process_wait(process, CLUSTER_PATIENCE_MS);
    ck_assert_msg(got == code, "exit code %d, not %d: %s", got, code, process_errors(process));
}

static void daemon_end(struct process *daemon)
{
    process_signal(daemon, SIGTERM);
    ends(daemon, 0);
    process_free(daemon);
}

/* Runs to its end; these are in what it says on stderr. */
static void fails(struct process *process, int code, const char *text, const char *other)
{
    ends(process, code);
    const char *errors = process_errors(process);
    ck_assert_msg(strstr(errors, text) && strstr(errors, other), "no \"%s\" and \"%s\" in: %s",
                  text, other, errors);
    ck_assert_str_eq(process_output(process), "");
    process_free(process);
}

static bool connects(void *context)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", (const char *)context);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool connected = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    close(fd);
    return connected;
}

static struct process *run2(const char *first, const char *second)
{
    const char *argv[] = {SHOALD, first, second, NULL};
    return process_run(argv);
}

/* --- options */

START_TEST(test_version_and_help)
{
    struct process *process = run2("--version", NULL);
    ends(process, 0);
    ck_assert_str_eq(process_output(process), "shoald 0.1.0\n");
    ck_assert_str_eq(process_errors(process), "");
    process_free(process);

    process = run2("--help", NULL);
    ends(process, 0);
    ck_assert_ptr_nonnull(strstr(process_output(process), "usage: shoald"));
    process_free(process);
}
END_TEST

START_TEST(test_wrong_options)
{
    static const char help[] = "Try 'shoald --help'.";
    fails(run2("--bogus", NULL), 2, "--bogus", help);
    fails(run2("-z", NULL), 2, "z", help);
    fails(run2("start", NULL), 2, "'start' is not an option", help);
    fails(run2("--config", NULL), 2, "--config", help);
    fails(run2("--listen-fd", "999"), 2, "--listen-fd 999: not an open descriptor", help);
    fails(run2("--listen-fd", "-1"), 2, "--listen-fd -1", help);
    fails(run2("--socket-fd", "1x"), 2, "--socket-fd 1x", help);
    fails(run2("--exit-with-parent-fd", ""), 2, "--exit-with-parent-fd", help);
}
END_TEST

/* --- configurations */

static void check_good(const char *path)
{
    struct process *process = run2("--check-config", path);
    ends(process, 0);
    ck_assert_str_eq(process_output(process), "");
    ck_assert_str_eq(process_errors(process), "");
    process_free(process);
}

START_TEST(test_check_config)
{
    check_good(TEST_SOURCE_DIR "/config/full.json");
    check_good(TEST_SOURCE_DIR "/config/minimal.json");
    file_write(config_path, "{\"node\": 5, \"zap\": {}, \"data\": {\"chunk_bytes\": 1}}", 0644);
    /* All that is wrong, not the first of it. */
    fails(run2("--check-config", config_path), 3, "/zap: unknown key", "/node: got 5");
    fails(run2("--check-config", config_path), 3, config_path, "/data/chunk_bytes: got 1");
    fails(run2("--config", config_path), 3, "/zap: unknown key", "/node: got 5");
    file_write(config_path, "{\"node\": ", 0644);
    fails(run2("--check-config", config_path), 3, config_path, ":1:");
}
END_TEST

START_TEST(test_no_config)
{
    static const char text[] = "cannot be opened: No such file or directory";
    char missing[300];
    snprintf(missing, sizeof(missing), "%s/none.json", directory);
    fails(run2("--config", missing), 3, missing, text);
    fails(run2("--check-config", missing), 3, missing, text);
    fails(run2("--config", directory), 3, directory, "");
}
END_TEST

START_TEST(test_print_config)
{
    /* The printed configuration can be read, and prints the same. */
    const char *argv[] = {SHOALD, "--config", config_path, "--print-config", NULL};
    configure(", \"timeouts\": {\"drain_ms\": 1234}");
    struct process *process = process_run(argv);
    ends(process, 0);
    char *first = strdup(process_output(process));
    process_free(process);
    ck_assert_ptr_nonnull(strstr(first, "\"drain_ms\": 1234"));
    ck_assert_ptr_nonnull(strstr(first, socket_path));
    ck_assert_ptr_nonnull(strstr(first, "\"heartbeat_ms\": "));

    file_write(config_path, first, 0644);
    check_good(config_path);
    process = process_run(argv);
    ends(process, 0);
    ck_assert_str_eq(process_output(process), first);
    process_free(process);
    free(first);

    file_write(config_path, "{\"log\": {\"level\": \"loud\"}}", 0644);
    fails(process_run(argv), 3, config_path, "/log/level");
}
END_TEST

START_TEST(test_unknown_provider)
{
    char text[512];
    snprintf(text, sizeof(text),
             "{\"socket\": {\"path\": \"%s\"}, \"fabric\": {\"provider\": \"telepathy\"}}",
             socket_path);
    file_write(config_path, text, 0644);
    fails(daemon_begin(NULL), 3, "/fabric/provider: got \"telepathy\"",
          "must be \"auto\", \"efa\", \"verbs\", \"tcp\"");
    ck_assert_int_ne(access(socket_path, F_OK), 0);
}
END_TEST

/* Variables that libfabric 1 reads from the environment alone are there before it looks; it says
 * so. */
START_TEST(test_fabric_environment)
{
    char text[512];
    snprintf(text, sizeof(text),
             "{\"socket\": {\"path\": \"%s\"}, \"fabric\": {\"provider\": \"tcp;ofi_rxm\"}}",
             socket_path);
    file_write(config_path, text, 0644);
    struct process *daemon = daemon_begin((const char *const[]){"FI_LOG_LEVEL=info", NULL});
    wait_text(daemon, ", libfabric "); /* 2 looks for no such thing */
    const char *said = process_errors(daemon);
    ck_assert(strstr(said, ", libfabric 2") || strstr(said, "eager_limit=17825792"));
    process_free(daemon);
}
END_TEST

START_TEST(test_instruction_set)
{
    configure(", \"data\": {\"instruction_set\": \"scalar\"}");
    struct process *daemon = daemon_start();
    ck_assert_ptr_nonnull(strstr(process_errors(daemon), "reduction: scalar"));
    daemon_end(daemon);
}
END_TEST

START_TEST(test_quiet_log)
{
    configure(", \"log\": {\"level\": \"error\"}");
    struct process *daemon = daemon_begin(NULL);
    ck_assert(wait_until(connects, socket_path, CLUSTER_PATIENCE_MS));
    process_signal(daemon, SIGTERM);
    ends(daemon, 0);
    ck_assert_str_eq(process_errors(daemon), "");
    process_free(daemon);
}
END_TEST

/* --- the secret */

#define SECRET "0123456789abcdef0123456789abcdef0123456789abcdef"

static void secret_write(char path[256], const char *text, mode_t mode)
{
    char keys[320];
    snprintf(path, 256, "%s/secret", directory);
    if (text)
        file_write(path, text, mode);
    snprintf(keys, sizeof(keys), ", \"secret_file\": \"%s\"", path);
    configure(keys);
}

START_TEST(test_secret)
{
    char path[256];
    secret_write(path, NULL, 0);
    fails(daemon_begin(NULL), 3, path, "cannot be opened: No such file or directory");
    secret_write(path, "only 15 bytes!!\n", 0600);
    fails(daemon_begin(NULL), 3, path, "a blank, or what is not ASCII, in a secret");
    secret_write(path, "0123456789abcdef\n", 0600);
    fails(daemon_begin(NULL), 3, path, "a secret of 16 characters, 43 to 1024 are allowed");
    secret_write(path, SECRET, 0640);
    fails(daemon_begin(NULL), 3, path, "has mode 640: group and others must not read it");
    secret_write(path, SECRET, 0600);
    struct process *daemon = daemon_start();
    ck_assert_ptr_null(strstr(process_errors(daemon), "0123456789abcdef"));
    daemon_end(daemon);
}
END_TEST

START_TEST(test_other_machines_need_a_secret)
{
    configure(", \"listen\": {\"address\": \"0.0.0.0\"}");
    fails(run2("--config", config_path), 3, config_path, "secret_file");
}
END_TEST

/* --- the sockets */

START_TEST(test_socket_mode)
{
    static const struct {
        const char *keys;
        mode_t mode;
    } modes[] = {{"", 0660}, {", \"mode\": \"0600\"", 0600}, {", \"mode\": \"0666\"", 0666}};
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        struct stat status;
        configure_socket(modes[i].keys, "");
        struct process *daemon = daemon_start();
        ck_assert_int_eq(stat(socket_path, &status), 0);
        ck_assert(S_ISSOCK(status.st_mode));
        ck_assert_uint_eq(status.st_mode & 0777, modes[i].mode);
        daemon_end(daemon);
        ck_assert_int_ne(access(socket_path, F_OK), 0); /* it takes its socket away */
    }
}
END_TEST

START_TEST(test_stale_socket_is_replaced)
{
    configure("");
    struct process *daemon = daemon_start();
    process_signal(daemon, SIGKILL);
    ends(daemon, 128 + SIGKILL);
    process_free(daemon);
    ck_assert_int_eq(access(socket_path, F_OK), 0); /* left behind, nobody answers */
    ck_assert(!connects(socket_path));
    daemon = daemon_start();
    ck_assert(connects(socket_path));
    daemon_end(daemon);
}
END_TEST

START_TEST(test_live_socket_is_left_alone)
{
    configure("");
    struct process *first = daemon_start();
    fails(daemon_begin(NULL), 1, "another daemon answers on ", socket_path);
    ck_assert(connects(socket_path)); /* the first one has not noticed */
    daemon_end(first);
}
END_TEST

START_TEST(test_other_files_are_left_alone)
{
    configure("");
    file_write(socket_path, "precious", 0600);
    fails(daemon_begin(NULL), 1, socket_path, "is there and is not a socket");
    struct stat status;
    ck_assert_int_eq(stat(socket_path, &status), 0);
    ck_assert_int_eq(status.st_size, 8);
    ck_assert_int_eq(unlink(socket_path), 0);
    snprintf(socket_path, sizeof(socket_path), "%.70s/no/such/folder.sock", directory);
    configure("");
    fails(daemon_begin(NULL), 1, socket_path, "No such file or directory");
}
END_TEST

START_TEST(test_port_in_use)
{
    char keys[64], text[64];
    uint16_t port;
    int taken = tcp_listen(&port);
    snprintf(keys, sizeof(keys), ", \"listen\": {\"port\": %u}", port);
    snprintf(text, sizeof(text), "listening on 127.0.0.1 port %u", port);
    configure(keys);
    fails(run2("--config", config_path), 1, text, "Address already in use");
    ck_assert_int_ne(access(socket_path, F_OK), 0);
    close(taken);
}
END_TEST

/* --- signals */

START_TEST(test_signals)
{
    static const int numbers[] = {SIGTERM, SIGINT};
    configure("");
    for (size_t i = 0; i < 2; i++) {
        struct process *daemon = daemon_start();
        process_signal(daemon, SIGHUP);
        wait_text(daemon, "SIGHUP: ");
        process_signal(daemon, numbers[i]);
        ends(daemon, 0);
        wait_text(daemon, "shutting down");
        wait_text(daemon, "ended");
        process_free(daemon);
    }
}
END_TEST

static bool waits_for_a_rank(const json_t *status)
{
    const json_t *job = json_array_get(json_object_get(status, "jobs"), 0);
    return json_array_size(json_object_get(job, "late")) > 0;
}

START_TEST(test_second_signal)
{
    /* A collective runs and will not end: the first signal waits for it, the second does not. */
    static const char extra[] = "{\"timeouts\": {\"late_ms\": 200, \"drain_ms\": 600000}}";
    char never[300];
    struct process *workers[2];
    snprintf(never, sizeof(never), "%s/never", directory);
    const char *argv[] = {CLUSTER_HELPER, "late", never, NULL};
    struct cluster *cluster = cluster_start(1, extra);
    cluster_job(cluster, "held", 2, argv, workers);
    ck_assert(cluster_wait_status(cluster, 0, waits_for_a_rank, CLUSTER_PATIENCE_MS));
    struct process *daemon = cluster->nodes[0].daemon;
    process_signal(daemon, SIGTERM);
    wait_text(daemon, "running collectives may finish for 600000 ms");
    ck_assert_int_eq(process_wait(daemon, 0), -1);
    process_signal(daemon, SIGTERM);
    ends(daemon, 1);
    wait_text(daemon, "Terminated again: ending at once");
    /* The rank that waited is told, and is not left hanging. */
    ck_assert_int_eq(process_wait(workers[0], CLUSTER_PATIENCE_MS), 7);
    process_free(workers[0]);
    process_free(workers[1]);
    cluster_free(cluster);
}
END_TEST

START_TEST(test_ends_with_its_parent)
{
    int ends_of_pipe[2];
    char tcp_text[16], parent_text[16];
    uint16_t port;
    int tcp = tcp_listen(&port);
    ck_assert_int_eq(pipe(ends_of_pipe), 0);
    snprintf(tcp_text, sizeof(tcp_text), "%d", tcp);
    snprintf(parent_text, sizeof(parent_text), "%d", ends_of_pipe[0]);
    configure("");
    const char *argv[] = {SHOALD,        "--config", config_path,
                          "--listen-fd", tcp_text,   "--exit-with-parent-fd",
                          parent_text,   NULL};
    int kept[] = {tcp, ends_of_pipe[0]};
    fcntl(ends_of_pipe[1], F_SETFD, FD_CLOEXEC); /* only this process holds it */
    struct process_start start = {.argv = argv, .inherited = kept, .inherited_count = 2};
    struct process *daemon = process_start(&start);
    wait_text(daemon, STARTED);
    ck_assert_int_eq(process_wait(daemon, 0), -1);
    close(ends_of_pipe[1]);
    ends(daemon, 0);
    wait_text(daemon, "the parent process is gone");
    process_free(daemon);
    close(ends_of_pipe[0]);
    close(tcp);
}
END_TEST

/* --- the service manager */

static int notify_open(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* The next message begins with the text. */
static void notified(int fd, const char *text)
{
    char got[256];
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    ck_assert_msg(poll(&polled, 1, CLUSTER_PATIENCE_MS) == 1, "no \"%s\"", text);
    ssize_t count = recv(fd, got, sizeof(got) - 1, 0);
    ck_assert_int_ge(count, 0);
    got[count] = '\0';
    ck_assert_msg(strncmp(got, text, strlen(text)) == 0, "\"%s\", not \"%s\"", got, text);
}

START_TEST(test_notify)
{
    char path[108], variable[128];
    snprintf(path, sizeof(path), "%.80s/notify.sock", directory);
    snprintf(variable, sizeof(variable), "NOTIFY_SOCKET=%s", path);
    const char *environment[] = {variable, NULL};
    int fd = notify_open(path);
    configure("");
    struct process *daemon = daemon_begin(environment);
    notified(fd, "READY=1\n");
    ck_assert(connects(socket_path)); /* ready means that */
    process_signal(daemon, SIGTERM);
    notified(fd, "STOPPING=1\n");
    ends(daemon, 0);
    ck_assert_int_lt(recv(fd, variable, 1, MSG_DONTWAIT), 0); /* and nothing else */
    process_free(daemon);
    close(fd);
}
END_TEST

START_TEST(test_watchdog)
{
    char path[108], variable[128];
    snprintf(path, sizeof(path), "%.80s/notify.sock", directory);
    snprintf(variable, sizeof(variable), "NOTIFY_SOCKET=%s", path);
    const char *environment[] = {variable, "WATCHDOG_USEC=200000", NULL};
    int fd = notify_open(path);
    configure("");
    struct process *daemon = daemon_begin(environment);
    notified(fd, "READY=1\n");
    notified(fd, "WATCHDOG=1");
    notified(fd, "WATCHDOG=1");
    process_free(daemon);
    close(fd);
    environment[1] = "WATCHDOG_USEC=soon";
    fails(daemon_begin(environment), 1, "WATCHDOG_USEC", "soon");
}
END_TEST

START_TEST(test_nobody_to_notify)
{
    /* A manager that is gone is a warning, not the end. */
    static const char *const environment[] = {"NOTIFY_SOCKET=/nonexistent/notify", NULL};
    configure("");
    struct process *daemon = daemon_begin(environment);
    wait_text(daemon, "the service manager cannot be told");
    ck_assert(wait_until(connects, socket_path, CLUSTER_PATIENCE_MS));
    daemon_end(daemon);
}
END_TEST

/* --- metrics */

/* A port that was free a moment ago; should it be taken since, another one. */
static struct process *metrics_start(uint16_t *port)
{
    for (int attempt = 0; attempt < 10; attempt++) {
        char keys[96];
        close(tcp_listen(port));
        snprintf(keys, sizeof(keys), ", \"metrics\": {\"address\": \"127.0.0.1\", \"port\": %u}",
                 *port);
        configure(keys);
        struct process *daemon = daemon_begin(NULL);
        if (process_wait_text(daemon, STARTED, CLUSTER_PATIENCE_MS))
            return daemon;
        ck_assert_msg(strstr(process_errors(daemon), "metrics cannot be served") != NULL, "%s",
                      process_errors(daemon));
        process_free(daemon);
    }
    ck_abort_msg("no port for the metrics");
    return NULL;
}

START_TEST(test_metrics)
{
    uint16_t port;
    struct process *daemon = metrics_start(&port);
    char *answer = cluster_http(port, "GET /metrics HTTP/1.0\r\n\r\n");
    ck_assert_msg(strncmp(answer, "HTTP/1.0 200 ", 13) == 0, "%.100s", answer);
    ck_assert_ptr_nonnull(strstr(answer, "Content-Type: text/plain; version=0.0.4"));
    const char *body = strstr(answer, "\r\n\r\n");
    ck_assert_ptr_nonnull(body);
    ck_assert_int_eq(strncmp(body + 4, "# TYPE shoal_", 13), 0);
    ck_assert_ptr_nonnull(strstr(body, "\nshoal_draining 0\n"));
    free(answer);
    /* Anything else is not there, and does no harm. */
    answer = cluster_http(port, "GET /nothing HTTP/1.0\r\n\r\n");
    ck_assert_msg(strstr(answer, " 404 Not Found\r\n") != NULL, "%.100s", answer);
    free(answer);
    answer = cluster_http(port, "DELETE /metrics HTTP/1.0\r\n\r\n");
    ck_assert_ptr_null(strstr(answer, " 200 "));
    free(answer);
    daemon_end(daemon);
}
END_TEST

/* hwloc's plugins bring in libraries that a daemon has no use for. */
START_TEST(test_no_plugins)
{
    char path[32], line[512];
    unsetenv("HWLOC_PLUGINS_PATH");
    configure("");
    struct process *daemon = daemon_start();
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)daemon->pid);
    FILE *maps = fopen(path, "r");
    ck_assert_ptr_nonnull(maps);
    bool hwloc = false;
    while (fgets(line, sizeof(line), maps)) {
        hwloc |= strstr(line, "/libhwloc") != NULL;
        ck_assert_msg(!strstr(line, "/hwloc/") && !strstr(line, "/libxml2"), "%s", line);
    }
    ck_assert(hwloc);
    fclose(maps);
    daemon_end(daemon);
}
END_TEST

START_TEST(test_metrics_port_in_use)
{
    char keys[96], text[64];
    uint16_t port;
    int taken = tcp_listen(&port);
    snprintf(keys, sizeof(keys), ", \"metrics\": {\"address\": \"127.0.0.1\", \"port\": %u}", port);
    snprintf(text, sizeof(text), "metrics cannot be served on 127.0.0.1 port %u", port);
    configure(keys);
    fails(daemon_begin(NULL), 1, text, "error");
    close(taken);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        test_version_and_help,
        test_wrong_options,
        test_check_config,
        test_no_config,
        test_print_config,
        test_unknown_provider,
        test_fabric_environment,
        test_instruction_set,
        test_quiet_log,
        test_secret,
        test_other_machines_need_a_secret,
        test_socket_mode,
        test_stale_socket_is_replaced,
        test_live_socket_is_left_alone,
        test_other_files_are_left_alone,
        test_port_in_use,
        test_signals,
        test_second_signal,
        test_ends_with_its_parent,
        test_notify,
        test_watchdog,
        test_nobody_to_notify,
        test_metrics,
        test_metrics_port_in_use,
        test_no_plugins,
    };
    Suite *suite = suite_create("shoald");
    TCase *cases = tcase_create("shoald");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_set_timeout(cases, 180);
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
        tcase_add_test(cases, tests[i]);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
