/* A daemon whose standard error is a pipe that nobody reads: it goes on, and says later how many
 * lines it has not written. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/lib/cluster.h"
#include "tests/lib/suite.h"

#define VISITORS 1500

static char *directory;
static char socket_path[108], config_path[256], pipe_path[256];
static int reader; /* also holds the pipe's other side, so that opening it waits for nobody */
static struct process *daemon_process;

static int tcp_listen(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    return fd;
}

static int connect_unix(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    close(fd);
    return -1;
}

static bool listens(void *context)
{
    (void)context;
    int fd = connect_unix();
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static void setup(void)
{
    directory = suite_make_directory();
    snprintf(socket_path, sizeof(socket_path), "%.80s/shoald.sock", directory);
    snprintf(config_path, sizeof(config_path), "%s/shoald.json", directory);
    snprintf(pipe_path, sizeof(pipe_path), "%s/errors", directory);
    FILE *file = fopen(config_path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file,
            "{\"socket\": {\"path\": \"%s\"}, \"fabric\": {\"provider\": \"tcp\"},"
            " \"log\": {\"level\": \"debug\"}}",
            socket_path);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(mkfifo(pipe_path, 0600), 0);
    reader = open(pipe_path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    ck_assert_int_ge(reader, 0);

    int tcp = tcp_listen();
    char tcp_text[16];
    snprintf(tcp_text, sizeof(tcp_text), "%d", tcp);
    const char *argv[] = {"sh",
                          "-c",
                          "exec \"$0\" --config \"$1\" --listen-fd \"$2\" 2>\"$3\"",
                          CLUSTER_BIN "shoald",
                          config_path,
                          tcp_text,
                          pipe_path,
                          NULL};
    struct process_start start = {.argv = argv, .inherited = &tcp, .inherited_count = 1};
    daemon_process = process_start(&start);
    close(tcp);
    ck_assert(wait_until(listens, NULL, CLUSTER_PATIENCE_MS));
}

static void teardown(void)
{
    process_signal(daemon_process, SIGTERM);
    ck_assert_int_eq(process_wait(daemon_process, CLUSTER_PATIENCE_MS), 0);
    process_free(daemon_process);
    close(reader);
    suite_remove_directory(directory);
}

/* Comes and goes without a word, until the daemon has closed too: a line of the log each, of those
 * that no throttle holds back. */
static void visit(void)
{
    int fd = connect_unix();
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(shutdown(fd, SHUT_WR), 0);
    char bytes[1024];
    for (;;) {
        struct pollfd polled = {.fd = fd, .events = POLLIN};
        ck_assert_msg(poll(&polled, 1, CLUSTER_PATIENCE_MS) == 1, "the daemon does not answer");
        if (recv(fd, bytes, sizeof(bytes), 0) <= 0)
            break;
    }
    close(fd);
}

/* Reads what is in the pipe; whether it has the text. */
static bool pipe_has(void *text)
{
    static char seen[1 << 17];
    static size_t used;
    ssize_t got;
    while ((got = read(reader, seen + used, sizeof(seen) - 1 - used)) > 0)
        used += (size_t)got;
    seen[used] = '\0';
    return strstr(seen, text) != NULL;
}

START_TEST(goes_on_while_nobody_reads)
{
    for (int i = 0; i < VISITORS; i++)
        visit();
    const char *argv[] = {CLUSTER_BIN "shoalctl", "--socket", socket_path, "status", NULL};
    struct process *status = process_run(argv);
    ck_assert_int_eq(process_wait(status, CLUSTER_PATIENCE_MS), 0);
    process_free(status);

    char dropped[] = "lines of this log were dropped";
    ck_assert(!pipe_has(dropped));
    visit();
    ck_assert(wait_until(pipe_has, dropped, CLUSTER_PATIENCE_MS));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shoald log");
    TCase *tests = tcase_create("shoald log");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, goes_on_while_nobody_reads);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
