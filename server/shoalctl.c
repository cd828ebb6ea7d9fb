/* shoalctl: asks the daemon of this node how it is, and tells it to drain. */
#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/env.h"
#include "common/error.h"
#include "server/shoalctl_print.h"

#define EXIT_NO_DAEMON 1
#define EXIT_USAGE 2
#define ANSWER_MS 10000
#define LINE_BYTES_MAX (64u << 20) /* of a status with every job and peer that limits allow */
#define DEFAULT_SOCKET "/run/shoal/shoald.sock"

static const char usage_text[] =
    "usage: shoalctl [--socket PATH] COMMAND\n"
    "  status [--json] [--watch [SECONDS]]   the daemon, its peers, jobs and memory\n"
    "  jobs [--json]                         the jobs alone\n"
    "  drain [--wait]                        take no new jobs, finish what runs, then end;\n"
    "                                        root or the daemon's own user only\n"
    "  --socket PATH   the daemon's socket (default: SHOAL_SOCKET, then\n"
    "                  " DEFAULT_SOCKET ")\n"
    "  --help, --version\n"
    "Exit codes: 0 done, 1 no daemon or refused, 2 usage.\n";

struct options {
    const char *socket_path;
    const char *command;
    bool json, watch, wait, help, version;
    double watch_s;
};

/* One conversation with the daemon. */
struct conversation {
    const char *path;
    int fd;
    char *bytes; /* received and not yet taken */
    size_t used, room;
};

/* --- options -------------------------------------------------------------------------------- */

static int usage_error(const char *reason, const char *what)
{
    fprintf(stderr, "shoalctl: %s%s\n%s", reason, what, usage_text);
    return ERR_INVALID;
}

static bool parse_seconds(const char *text, double *seconds)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= 0.1 && value <= 86400))
        return false;
    *seconds = value;
    return true;
}

static int command_take(struct options *options, const char *word)
{
    if (!options->command &&
        (strcmp(word, "status") == 0 || strcmp(word, "jobs") == 0 || strcmp(word, "drain") == 0)) {
        options->command = word;
        return 0;
    }
    /* The seconds of --watch may stand apart from it. */
    if (options->watch && parse_seconds(word, &options->watch_s))
        return 0;
    return usage_error("unknown command or argument: ", word);
}

static int options_check(const struct options *options)
{
    if (options->help || options->version)
        return 0;
    if (!options->command)
        return usage_error("which command?", "");
    bool drain = strcmp(options->command, "drain") == 0;
    if (options->wait && !drain)
        return usage_error("--wait is for drain", "");
    if (options->watch && strcmp(options->command, "status") != 0)
        return usage_error("--watch is for status", "");
    if (options->json && drain)
        return usage_error("--json is for status and jobs", "");
    return 0;
}

static int options_parse(int argc, char **argv, struct options *options)
{
    static const struct option names[] = {
        {"socket", required_argument, NULL, 's'},
        {"json", no_argument, NULL, 'j'},
        {"watch", optional_argument, NULL, 'w'},
        {"wait", no_argument, NULL, 'W'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'v'},
        {NULL, 0, NULL, 0},
    };
    int option;
    opterr = 0;
    /* "-": words come in their place, as option 1. */
    while ((option = getopt_long(argc, argv, "-:", names, NULL)) != -1) {
        switch (option) {
        case 1:
            assert(optarg);
            if (command_take(options, optarg))
                return ERR_INVALID;
            break;
        case 's':
            options->socket_path = optarg;
            break;
        case 'j':
            options->json = true;
            break;
        case 'w':
            options->watch = true;
            if (optarg && !parse_seconds(optarg, &options->watch_s))
                return usage_error("--watch: must be 0.1 to 86400 seconds, got ", optarg);
            break;
        case 'W':
            options->wait = true;
            break;
        case 'h':
            options->help = true;
            break;
        case 'v':
            options->version = true;
            break;
        case ':':
            return usage_error(argv[optind - 1], " needs a value");
        default:
            return usage_error("unknown option ", argv[optind - 1]);
        }
    }
    for (; optind < argc; optind++)
        if (command_take(options, argv[optind]))
            return ERR_INVALID;
    return options_check(options);
}

/* --- conversation --------------------------------------------------------------------------- */

static int conversation_open(struct conversation *talk, struct error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(talk->path);
    if (length >= sizeof(address.sun_path))
        return error_set(error, ERR_INVALID, "%s is too long for a socket", talk->path);
    memcpy(address.sun_path, talk->path, length + 1);
    talk->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (talk->fd < 0)
        return error_set_errno(error, errno, "cannot open a socket");
    /* A full backlog makes connect wait, a full buffer send; this bounds them. */
    struct timeval limit = {.tv_sec = ANSWER_MS / 1000, .tv_usec = ANSWER_MS % 1000 * 1000};
    if (setsockopt(talk->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)))
        return error_set_errno(error, errno, "cannot set up a socket");
    if (connect(talk->fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return 0;
    if (errno == EAGAIN)
        return error_set(error, ERR_TIMEOUT, "the daemon at %s does not answer", talk->path);
    return error_set_errno(error, errno, "no daemon at %s", talk->path);
}

static void conversation_close(struct conversation *talk)
{
    if (talk->fd >= 0)
        close(talk->fd);
    free(talk->bytes);
}

static int line_send(struct conversation *talk, const char *line, struct error *error)
{
    size_t length = strlen(line);
    while (length) {
        ssize_t sent = send(talk->fd, line, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN)
            return error_set(error, ERR_TIMEOUT, "the daemon at %s does not answer", talk->path);
        if (sent < 0 && errno != EINTR)
            return error_set_errno(error, errno, "cannot write to the daemon at %s", talk->path);
        if (sent > 0) {
            line += sent;
            length -= (size_t)sent;
        }
    }
    return 0;
}

/* More bytes, or an error; ERR_DISCONNECTED at the end. deadline_ns 0: no deadline. */
static int bytes_receive(struct conversation *talk, uint64_t deadline_ns, struct error *error)
{
    int wait_ms = -1;
    if (deadline_ns) {
        uint64_t now = clock_now_ns();
        if (now >= deadline_ns)
            return error_set(error, ERR_TIMEOUT, "the daemon at %s does not answer", talk->path);
        wait_ms = (int)((deadline_ns - now) / NS_PER_MS) + 1;
    }
    struct pollfd polled = {.fd = talk->fd, .events = POLLIN};
    if (poll(&polled, 1, wait_ms) <= 0)
        return 0;
    if (talk->room - talk->used < 4096) {
        size_t room = talk->room * 2 + 65536;
        char *bytes = room <= LINE_BYTES_MAX ? realloc(talk->bytes, room) : NULL;
        if (!bytes)
            return error_set(error, ERR_MEMORY, "the answer of the daemon is too long");
        talk->bytes = bytes;
        talk->room = room;
    }
    ssize_t got = recv(talk->fd, talk->bytes + talk->used, talk->room - talk->used, 0);
    if (got < 0 && errno != EINTR)
        return error_set_errno(error, errno, "cannot read from the daemon at %s", talk->path);
    if (got == 0)
        return error_set(error, ERR_DISCONNECTED, "the daemon at %s closed the connection",
                         talk->path);
    talk->used += got > 0 ? (size_t)got : 0;
    return 0;
}

/* The next object. An "error" object becomes an error. *object is the caller's. */
static int object_receive(struct conversation *talk, const char *type, json_t **object,
                          struct error *error)
{
    uint64_t deadline = clock_now_ns() + ANSWER_MS * NS_PER_MS;
    char *end;
    while (!(end = talk->used ? memchr(talk->bytes, '\n', talk->used) : NULL)) {
        int result = bytes_receive(talk, deadline, error);
        if (result)
            return result;
    }
    size_t length = (size_t)(end - talk->bytes) + 1;
    json_error_t place;
    json_t *read = json_loadb(talk->bytes, length, 0, &place);
    memmove(talk->bytes, talk->bytes + length, talk->used - length);
    talk->used -= length;
    const char *got = json_string_value(json_object_get(read, "type"));
    int result = 0;
    if (got && strcmp(got, "error") == 0) {
        const char *text = json_string_value(json_object_get(read, "text"));
        char shown[512];
        shoalctl_format_text(text ? text : "no reason given", shown, sizeof(shown));
        result = error_set(error, ERR_REFUSED, "the daemon at %s says: %s", talk->path, shown);
    } else if (!got || strcmp(got, type) != 0) {
        result = error_set(error, ERR_PROTOCOL, "%s is no shoald: its answer is no \"%s\"",
                           talk->path, type);
    }
    if (result)
        json_decref(read);
    else
        *object = read;
    return result;
}

static int hello_exchange(struct conversation *talk, struct error *error)
{
    char line[256];
    snprintf(line, sizeof(line),
             "{\"type\":\"hello\",\"protocol\":1,\"software\":\"shoalctl " SHOAL_VERSION
             "\",\"pid\":%d}\n",
             (int)getpid());
    int result = line_send(talk, line, error);
    json_t *hello = NULL;
    if (result == 0)
        result = object_receive(talk, "hello", &hello, error);
    if (result)
        return result;
    json_int_t protocol = json_integer_value(json_object_get(hello, "protocol"));
    json_decref(hello);
    if (protocol != 1)
        return error_set(error, ERR_PROTOCOL,
                         "the daemon at %s speaks protocol %d, this shoalctl 1", talk->path,
                         (int)protocol);
    return 0;
}

/* --- commands ------------------------------------------------------------------------------- */

static void status_show(const struct options *options, json_t *status)
{
    bool jobs = strcmp(options->command, "jobs") == 0;
    if (options->json) {
        json_t *shown = jobs ? json_object_get(status, "jobs") : status;
        json_dumpf(shown, stdout,
                   (options->watch ? JSON_COMPACT : JSON_INDENT(2)) | JSON_ENCODE_ANY);
        fputc('\n', stdout);
    } else if (jobs) {
        shoalctl_print_jobs(stdout, status);
    } else {
        if (options->watch && isatty(STDOUT_FILENO))
            fputs("\033[H\033[2J", stdout);
        shoalctl_print_status(stdout, status);
        if (options->watch && !isatty(STDOUT_FILENO))
            fputc('\n', stdout);
    }
    fflush(stdout);
}

/* Until the time has passed; at once when the daemon goes. */
static int watch_pause(struct conversation *talk, double seconds, struct error *error)
{
    uint64_t until = clock_now_ns() + (uint64_t)(seconds * 1e9);
    while (clock_now_ns() < until) {
        int result = bytes_receive(talk, until, error);
        if (result == ERR_TIMEOUT)
            break;
        if (result)
            return result;
    }
    return 0;
}

static int status_command(struct conversation *talk, const struct options *options,
                          struct error *error)
{
    for (;;) {
        json_t *status;
        int result = line_send(talk, "{\"type\":\"status\"}\n", error);
        if (result == 0)
            result = object_receive(talk, "status", &status, error);
        if (result)
            return result;
        status_show(options, status);
        json_decref(status);
        if (!options->watch || ferror(stdout))
            return 0;
        result = watch_pause(talk, options->watch_s, error);
        if (result)
            return result;
    }
}

static int drain_command(struct conversation *talk, const struct options *options,
                         struct error *error)
{
    json_t *answer;
    int result = line_send(talk, "{\"type\":\"drain\"}\n", error);
    if (result == 0)
        result = object_receive(talk, "draining", &answer, error);
    if (result)
        return result;
    json_decref(answer);
    printf("the daemon at %s is draining\n", talk->path);
    fflush(stdout);
    while (options->wait && result == 0)
        result = bytes_receive(talk, 0, error);
    if (!options->wait)
        return 0;
    /* Its end of the connection closes when it has ended, or is killed. */
    printf("the daemon at %s has ended\n", talk->path);
    return 0;
}

int main(int argc, char **argv)
{
    struct options options = {.watch_s = 2};
    if (options_parse(argc, argv, &options))
        return EXIT_USAGE;
    if (options.help || options.version) {
        fputs(options.help ? usage_text : "shoalctl " SHOAL_VERSION "\n", stdout);
        return EXIT_SUCCESS;
    }
    struct conversation talk = {.path = options.socket_path, .fd = -1};
    if (!talk.path)
        talk.path = env_text("SHOAL_SOCKET");
    if (!talk.path)
        talk.path = DEFAULT_SOCKET;
    struct error error = {0};
    int result = conversation_open(&talk, &error);
    if (result == 0)
        result = hello_exchange(&talk, &error);
    if (result == 0)
        result = strcmp(options.command, "drain") == 0 ? drain_command(&talk, &options, &error)
                                                       : status_command(&talk, &options, &error);
    conversation_close(&talk);
    if (result) {
        fprintf(stderr, "shoalctl: %s\n", error.text);
        return EXIT_NO_DAEMON;
    }
    return EXIT_SUCCESS;
}
