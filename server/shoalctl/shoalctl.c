/* shoalctl: asks the daemon of this node how it is, takes traces, tells it to drain, and makes
 * secrets. */
#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/auth/auth.h"
#include "common/auth/secret.h"
#include "common/base/clock.h"
#include "common/base/env.h"
#include "common/base/error.h"
#include "common/format/message.h"
#include "server/shoalctl/shoalctl_print.h"
#include "server/shoalctl/shoalctl_trace.h"
#include "server/shoalctl/shoalctl_watch.h"
#include "server/shoalctl/shoalctl_why.h"

#define EXIT_NO_DAEMON 1
#define EXIT_USAGE 2
#define WHY_NAMES_BYTES 512 /* of jobs from which one has to be chosen */

static const char usage_text[] =
    "usage: shoalctl [OPTION]... COMMAND\n"
    "Ask the daemon of this node how it is and whom a job waits for, record a\n"
    "trace, tell it to drain, or make a secret.\n"
    "\n"
    "Commands:\n"
    "  status                    the daemon, its peers, jobs and memory\n"
    "  jobs                      the jobs alone\n"
    "  why [JOB]                 which rank, link or server a job waits for, and\n"
    "                            what a step would take without that; JOB may be left\n"
    "                            out where one runs\n"
    "  drain                     take no new jobs, finish what runs, then end;\n"
    "                            for root and the daemon's own user\n"
    "  trace JOB                 record what the chunks of a job go through on this\n"
    "                            node, for chrome://tracing or Perfetto; for the\n"
    "                            job's user, root and the daemon's own user\n"
    "  secret [FILE]             make a new secret for the daemons' secret_file, in\n"
    "                            the new file FILE, or on the standard output\n"
    "\n"
    "Options:\n"
    "  --socket PATH             the daemon's socket (default: SHOAL_SOCKET, then\n"
    "                            " SHOAL_DEFAULT_SOCKET ")\n"
    "  --json                    of status, jobs and why: as JSON\n"
    "  --watch [SECONDS]         of status: again and again, every 2 s or SECONDS;\n"
    "                            on a terminal a page with bars, as large as that is\n"
    "  --wait                    of drain: until the daemon has ended\n"
    "  --seconds S               of trace: how long (default 2, at most 60)\n"
    "  --output FILE             of trace: write to FILE (default trace.json; -: the\n"
    "                            standard output)\n"
    "  -h, --help                print this text, and end\n"
    "  --version                 print the version, and end\n"
    "\n"
    "Exit status:\n"
    "  0    done\n"
    "  1    no daemon, refused, or the output could not be written\n"
    "  2    wrong options\n"
    "\n"
    "Read on: shoalctl(1), shoald(8).\n";

struct options {
    const char *socket_path;
    const char *command;
    const char *secret_path; /* NULL: the standard output */
    const char *why_job;
    bool json, watch, wait, help, version;
    double watch_s;
    struct trace_options trace;
    bool seconds;
};

/* --- options -------------------------------------------------------------------------------- */

static int shoalctl_usage_error(const char *reason, const char *what)
{
    fprintf(stderr, "shoalctl: %s%s\nTry 'shoalctl --help'.\n", reason, what);
    return ERR_INVALID;
}

static bool shoalctl_parse_seconds(const char *text, double *seconds)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= 0.1 && value <= 86400))
        return false;
    *seconds = value;
    return true;
}

static bool shoalctl_command_is(const struct options *options, const char *command)
{
    return options->command && strcmp(options->command, command) == 0;
}

static int shoalctl_command_take(struct options *options, const char *word)
{
    static const char *const commands[] = {"status", "jobs", "why", "drain", "trace", "secret"};
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]) && !options->command; i++) {
        if (strcmp(word, commands[i]) == 0) {
            options->command = word;
            return 0;
        }
    }
    if (shoalctl_command_is(options, "trace") && !options->trace.job) {
        options->trace.job = word;
        return 0;
    }
    if (shoalctl_command_is(options, "why") && !options->why_job) {
        options->why_job = word;
        return 0;
    }
    if (shoalctl_command_is(options, "secret") && !options->secret_path) {
        options->secret_path = word;
        return 0;
    }
    /* The seconds of --watch may stand apart from it. */
    if (options->watch && shoalctl_parse_seconds(word, &options->watch_s))
        return 0;
    return shoalctl_usage_error("unknown command or argument: ", word);
}

static int shoalctl_options_check(const struct options *options)
{
    if (options->help || options->version)
        return 0;
    if (!options->command)
        return shoalctl_usage_error("which command?", "");
    bool trace = shoalctl_command_is(options, "trace");
    if (options->wait && !shoalctl_command_is(options, "drain"))
        return shoalctl_usage_error("--wait is for drain", "");
    if (options->watch && !shoalctl_command_is(options, "status"))
        return shoalctl_usage_error("--watch is for status", "");
    if (options->json && !shoalctl_command_is(options, "status") &&
        !shoalctl_command_is(options, "jobs") && !shoalctl_command_is(options, "why"))
        return shoalctl_usage_error("--json is for status, jobs and why", "");
    if (options->why_job && strlen(options->why_job) >= MESSAGE_NAME_BYTES)
        return shoalctl_usage_error("no job has so long a name: ", options->why_job);
    if ((options->seconds || options->trace.output) && !trace)
        return shoalctl_usage_error("--seconds and --output are for trace", "");
    if (trace && !options->trace.job)
        return shoalctl_usage_error("which job is to be traced?", "");
    if (trace && strlen(options->trace.job) >= MESSAGE_NAME_BYTES)
        return shoalctl_usage_error("no job has so long a name: ", options->trace.job);
    return 0;
}

static int shoalctl_options_parse(int argc, char **argv, struct options *options)
{
    static const struct option names[] = {
        {"socket", required_argument, NULL, 's'},
        {"json", no_argument, NULL, 'j'},
        {"watch", optional_argument, NULL, 'w'},
        {"wait", no_argument, NULL, 'W'},
        {"seconds", required_argument, NULL, 'S'},
        {"output", required_argument, NULL, 'o'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'v'},
        {NULL, 0, NULL, 0},
    };
    int option;
    opterr = 0;
    /* "-": words come in their place, as option 1. */
    while ((option = getopt_long(argc, argv, "-:h", names, NULL)) != -1) {
        switch (option) {
        case 1:
            assert(optarg);
            if (shoalctl_command_take(options, optarg))
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
            if (optarg && !shoalctl_parse_seconds(optarg, &options->watch_s))
                return shoalctl_usage_error("--watch: must be 0.1 to 86400 seconds, got ", optarg);
            break;
        case 'W':
            options->wait = true;
            break;
        case 'S':
            options->seconds = true;
            if (trace_parse_seconds(optarg, &options->trace.duration_ms) != 0)
                return shoalctl_usage_error("--seconds: must be 0.001 to 60, got ", optarg);
            break;
        case 'o':
            options->trace.output = optarg;
            break;
        case 'h':
            options->help = true;
            break;
        case 'v':
            options->version = true;
            break;
        case ':':
            return shoalctl_usage_error(argv[optind - 1], " needs a value");
        default:
            return shoalctl_usage_error("unknown option ", argv[optind - 1]);
        }
    }
    for (; optind < argc; optind++)
        if (shoalctl_command_take(options, argv[optind]))
            return ERR_INVALID;
    return shoalctl_options_check(options);
}

/* --- commands ------------------------------------------------------------------------------- */

/* Output that nobody can read is no answer. */
static int shoalctl_output_check(struct error *error)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    return error_set_errno(error, errno, "cannot write what the daemon says");
}

static int shoalctl_status_show(const struct options *options, json_t *status, struct error *error)
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
        shoalctl_print_status(stdout, status);
        if (options->watch)
            fputc('\n', stdout);
    }
    return shoalctl_output_check(error);
}

/* Until the time has passed; at once when the daemon goes. */
static int shoalctl_watch_pause(struct conversation *talk, double seconds, struct error *error)
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

static int shoalctl_status_ask(struct conversation *talk, json_t **status, struct error *error)
{
    int result = line_send(talk, "{\"type\":\"status\"}\n", error);
    return result ? result : object_receive(talk, "status", TALK_ANSWER_MS, status, error);
}

static int shoalctl_status_command(struct conversation *talk, const struct options *options,
                                   struct error *error)
{
    if (options->watch && !options->json && watch_can_draw())
        return watch_run(talk, options->watch_s, error);
    for (;;) {
        json_t *status;
        int result = shoalctl_status_ask(talk, &status, error);
        if (result)
            return result;
        result = shoalctl_status_show(options, status, error);
        json_decref(status);
        if (result || !options->watch)
            return result;
        result = shoalctl_watch_pause(talk, options->watch_s, error);
        if (result)
            return result;
    }
}

static int shoalctl_drain_command(struct conversation *talk, const struct options *options,
                                  struct error *error)
{
    json_t *answer;
    int result = line_send(talk, "{\"type\":\"drain\"}\n", error);
    if (result == 0)
        result = object_receive(talk, "draining", TALK_ANSWER_MS, &answer, error);
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

/* The only job of the daemon, where the command line names none. */
static int shoalctl_why_job(struct conversation *talk, const struct options *options,
                            char job[MESSAGE_NAME_BYTES], struct error *error)
{
    json_t *status;
    char names[WHY_NAMES_BYTES] = "";
    if (options->why_job) {
        snprintf(job, MESSAGE_NAME_BYTES, "%s", options->why_job);
        return 0;
    }
    int result = shoalctl_status_ask(talk, &status, error);
    if (result)
        return result;
    const json_t *jobs = json_object_get(status, "jobs"), *one;
    size_t index, count = json_array_size(jobs), used = 0;
    json_array_foreach(jobs, index, one)
    {
        const char *name = json_string_value(json_object_get(one, "name"));
        snprintf(job, MESSAGE_NAME_BYTES, "%s", name ? name : "");
        if (used < sizeof(names))
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", index ? ", " : "",
                                     job);
    }
    json_decref(status);
    if (count == 0)
        return error_set(error, ERR_INVALID, "the daemon at %s has no job", talk->path);
    if (count > 1)
        return error_set(error, ERR_INVALID, "the daemon at %s has %zu jobs; name one of them: %s",
                         talk->path, count, names);
    return 0;
}

static int shoalctl_why_command(struct conversation *talk, const struct options *options,
                                struct error *error)
{
    char job[MESSAGE_NAME_BYTES];
    int result = shoalctl_why_job(talk, options, job, error);
    if (result == 0)
        result = shoalctl_why(talk, job, options->json, error);
    return result ? result : shoalctl_output_check(error);
}

static int shoalctl_command_run(struct conversation *talk, const struct options *options,
                                struct error *error)
{
    if (shoalctl_command_is(options, "drain"))
        return shoalctl_drain_command(talk, options, error);
    if (shoalctl_command_is(options, "trace"))
        return shoalctl_trace(talk, &options->trace, error);
    if (shoalctl_command_is(options, "why"))
        return shoalctl_why_command(talk, options, error);
    return shoalctl_status_command(talk, options, error);
}

/* No daemon is needed for it. */
static int shoalctl_secret(const struct options *options)
{
    struct error error = {0};
    if (auth_init(&error) == 0 && secret_make(options->secret_path, &error) == 0)
        return EXIT_SUCCESS;
    fprintf(stderr, "shoalctl: %s\n", error.text);
    return EXIT_NO_DAEMON;
}

int main(int argc, char **argv)
{
    struct options options = {.watch_s = 2, .trace.duration_ms = TRACE_DEFAULT_MS};
    if (shoalctl_options_parse(argc, argv, &options))
        return EXIT_USAGE;
    if (options.help || options.version) {
        fputs(options.help ? usage_text : "shoalctl " SHOAL_VERSION "\n", stdout);
        return EXIT_SUCCESS;
    }
    if (shoalctl_command_is(&options, "secret"))
        return shoalctl_secret(&options);
    struct conversation talk = {.path = options.socket_path, .fd = -1, .interrupt_fd = -1};
    if (!talk.path)
        talk.path = env_text("SHOAL_SOCKET");
    if (!talk.path)
        talk.path = SHOAL_DEFAULT_SOCKET;
    struct error error = {0};
    int result = conversation_open(&talk, &error);
    if (result == 0)
        result = hello_exchange(&talk, &error);
    if (result == 0)
        result = shoalctl_command_run(&talk, &options, &error);
    conversation_close(&talk);
    if (result) {
        fprintf(stderr, "shoalctl: %s\n", error.text);
        return EXIT_NO_DAEMON;
    }
    return EXIT_SUCCESS;
}
