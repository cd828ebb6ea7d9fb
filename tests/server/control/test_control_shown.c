/* Users' names and texts may hold what a terminal obeys: it is shown as escapes wherever a person
 * reads it: in the log, in the status and the page's documents, in the metrics. Each case is said
 * to a daemon in all the ways that there are, and looked for in all that it shows. */
#include <fcntl.h>
#include <jansson.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log/log_ring.h"
#include "tests/lib/server/control_daemon.h"
#include "tests/lib/suite.h"

#define DOCUMENT_BYTES ((size_t)1 << 20)
#define ANSWER_MS 300
#define ASK_MS 50

static const struct {
    const char *raw, *shown;
    bool in_name; /* a job's name may have it */
} cases[] = {
    {"\x1b[2J", "\\u001b[2J", false},              /* C0: clears the screen */
    {"\x1b]0;x\x07", "\\u001b]0;x\\u0007", false}, /* C0: a terminal's title */
    {"\r\n", "\\u000d\\u000a", false},             /* another line */
    {"\x7f", "\\u007f", false},                    /* DEL */
    {"\xc2\x9b", "\\u009b", true},                 /* C1: as ESC [ */
    {"\xc2\x85", "\\u0085", true},                 /* C1: another line */
    {"\xe2\x80\xae", "\\u202e", true},             /* an override: the rest is read backwards */
    {"\xe2\x80\x8f", "\\u200f", true},             /* a mark */
    {"\xd8\x9c", "\\u061c", true},                 /* a mark */
    {"\xe2\x81\xa6", "\\u2066", true},             /* an isolate */
    {"\xe2\x80\xa8", "\\u2028", true},             /* a separator of lines */
};
#define CASES ((int)(sizeof(cases) / sizeof(cases[0])))

static char *directory;
static char log_path[300];
static struct control_daemon *daemon_a;
static struct log_ring ring;
static uint16_t page_port;
static int log_fd;

static void setup(void)
{
    struct error error = {0};
    uint16_t port = 0;
    directory = suite_make_directory();
    int held = control_daemon_bind(&page_port), yes = 1;
    ck_assert_int_eq(setsockopt(held, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)), 0);
    daemon_a = control_daemon_create(directory, 1, 0, &port);
    daemon_a->config.metrics_port = page_port;
    snprintf(log_path, sizeof(log_path), "%.200s/log", directory);
    log_fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ck_assert_int_ge(log_fd, 0);
    log_init(&daemon_a->log, "test", LOG_LEVEL_DEBUG, log_fd, false);
    log_ring_init(&ring);
    daemon_a->log.ring = &ring;
    ck_assert_msg(control_daemon_start(daemon_a, &error) == 0, "%s", error.text);
    close(held);
}

/* Connect, and ask for a document. Returns the socket; -1: nobody listens. */
static int page_request(const char *path)
{
    char request[64];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(page_port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        close(fd);
        return -1;
    }
    snprintf(request, sizeof(request), "GET %s HTTP/1.0\r\n\r\n", path);
    send(fd, request, strlen(request), MSG_NOSIGNAL);
    return fd;
}

/* Returns whether there was an answer: none comes where the daemon has ended. */
static bool page_ask(const char *path)
{
    struct pollfd answer = {.fd = page_request(path), .events = POLLIN};
    if (answer.fd < 0)
        return false;
    bool answered = poll(&answer, 1, ANSWER_MS) == 1;
    close(answer.fd);
    return answered;
}

/* Ask as an open page does, until it has heard of the end, for which the daemon waits. */
static void page_hear_end(void)
{
    while (page_ask("/status.json") && page_ask("/why.json"))
        poll(NULL, 0, ASK_MS);
}

static void teardown(void)
{
    control_daemon_signal(daemon_a, SIGTERM);
    page_hear_end();
    control_daemon_join(daemon_a);
    control_daemon_free(daemon_a);
    log_ring_destroy(&ring);
    close(log_fd);
    suite_remove_directory(directory);
}

/* Say a line of the keys, whose texts are escaped as JSON wants it. */
static void say(struct control_client *client, json_t *keys)
{
    char *line = json_dumps(keys, JSON_COMPACT), *whole;
    ck_assert_int_ge(asprintf(&whole, "%s\n", line), 0);
    control_client_write(client, whole);
    free(whole);
    free(line);
    json_decref(keys);
}

/* Say that a rank of the job cannot join, and have it join or be refused. */
static void say_all(const char *job, const char *text)
{
    struct control_client client, joins;
    struct message message;
    control_client_open(&client, daemon_a);
    control_client_hello(&client);
    say(&client, json_pack("{ss ss si si si ss}", "type", "unable", "job", job, "world_size", 2,
                           "rank", 1, "code", ERR_MEMORY, "text", text));
    control_client_write(&client, "{\"type\":\"ping\"}\n");
    control_client_expect(&client, MESSAGE_PONG, &message);
    say(&client, json_pack("{ss ss}", "type", "why", "job", job));
    control_client_line(&client);
    say(&client, json_pack("{ss ss si}", "type", "trace", "job", job, "duration_ms", 5));
    control_client_line(&client);
    control_client_close(&client);
    control_client_open(&joins, daemon_a); /* of a job that gathers, too */
    control_client_hello(&joins);
    say(&joins, json_pack("{ss ss}", "type", "ending", "text", text));
    control_client_close(&joins);
}

static char *get(const char *path)
{
    char *document = calloc(1, DOCUMENT_BYTES);
    size_t used = 0;
    ssize_t count;
    int fd = page_request(path);
    ck_assert_int_ge(fd, 0);
    while ((count = recv(fd, document + used, DOCUMENT_BYTES - 1 - used, 0)) > 0)
        used += (size_t)count;
    close(fd);
    ck_assert_ptr_nonnull(strstr(document, " 200 "));
    char *body = strstr(document, "\r\n\r\n");
    ck_assert_ptr_nonnull(body);
    memmove(document, body + 4, strlen(body + 4) + 1);
    return document;
}

static char *log_text(void)
{
    char *text = calloc(1, DOCUMENT_BYTES);
    FILE *file = fopen(log_path, "re");
    ck_assert_ptr_nonnull(file);
    size_t bytes = fread(text, 1, DOCUMENT_BYTES - 1, file);
    fclose(file);
    text[bytes] = '\0';
    return text;
}

/* Lines end with \n, in all of these; that is no control of somebody's name. */
static void expect_no_control(const char *where, const char *text, int number)
{
    for (const char *at = text; *at; at++)
        ck_assert_msg((unsigned char)*at >= 0x20 ? *at != 0x7f : *at == '\n',
                      "case %d: byte %d in %s", number, *at, where);
    for (int i = 0; i < CASES; i++) {
        if ((unsigned char)cases[i].raw[0] >= 0x80)
            ck_assert_msg(!strstr(text, cases[i].raw), "case %d is in %s as it was said", i, where);
    }
}

/* doubled: JSON, and a label of the metrics, have a backslash twice. */
static bool has_shown(const char *text, const char *shown, bool doubled)
{
    char wanted[128];
    size_t used = 0;
    for (const char *at = shown; *at; at++) {
        if (*at == '\\' && doubled)
            wanted[used++] = '\\';
        wanted[used++] = *at;
    }
    wanted[used] = '\0';
    return strstr(text, wanted) != NULL;
}

START_TEST(test_shown_everywhere)
{
    static const char *const documents[] = {"/status.json", "/why.json", "/metrics"};
    struct control_client rank;
    char name[64], text[128], shown_text[160], shown_name[160];
    bool in_name = cases[_i].in_name;
    snprintf(name, sizeof(name), "job-%s-", in_name ? cases[_i].raw : "");
    snprintf(shown_name, sizeof(shown_name), "job-%s-", in_name ? cases[_i].shown : "");
    snprintf(text, sizeof(text), "words-%s-", cases[_i].raw);
    snprintf(shown_text, sizeof(shown_text), "words-%s-", cases[_i].shown);
    control_client_open(&rank, daemon_a);
    control_client_hello(&rank);
    control_client_join(&rank, name, 2, 0);
    say_all(name, text);
    char *log = log_text();
    expect_no_control("the log", log, _i);
    ck_assert_msg(has_shown(log, shown_text, false), "%s", log);
    ck_assert_msg(has_shown(log, shown_name, false), "%s", log);
    free(log);
    for (size_t i = 0; i < sizeof(documents) / sizeof(documents[0]); i++) {
        char *document = get(documents[i]);
        expect_no_control(documents[i], document, _i);
        if (i == 0)
            ck_assert_msg(has_shown(document, shown_text, true), "%s", document);
        free(document);
    }
    control_client_close(&rank);
}
END_TEST

/* A job that gathers stands in the status with its name. */
START_TEST(test_name_in_the_status)
{
    struct control_client rank;
    struct message message;
    char name[64], shown[64];
    if (!cases[_i].in_name)
        return;
    snprintf(name, sizeof(name), "job-%s-", cases[_i].raw);
    snprintf(shown, sizeof(shown), "job-%s-", cases[_i].shown);
    control_client_open(&rank, daemon_a);
    control_client_hello(&rank);
    control_client_join(&rank, name, 1, 0);
    control_client_expect(&rank, MESSAGE_JOINED, &message);
    message_clear(&message);
    char *document = get("/status.json"), *metrics = get("/metrics"), *whys = get("/why.json");
    expect_no_control("/status.json", document, _i);
    expect_no_control("/metrics", metrics, _i);
    expect_no_control("/why.json", whys, _i);
    ck_assert_msg(has_shown(document, shown, true), "%s", document);
    ck_assert_msg(has_shown(metrics, shown, true), "%s", metrics);
    free(document);
    free(metrics);
    free(whys);
    control_client_close(&rank);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control_shown");
    TCase *tests = tcase_create("shown");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_loop_test(tests, test_shown_everywhere, 0, CASES);
    tcase_add_loop_test(tests, test_name_in_the_status, 0, CASES);
    suite_add_tcase(suite, tests);
    return suite_main(suite);
}
