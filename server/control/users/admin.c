/* Answers for administration: the status, and over HTTP the metrics and the page. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"
#include "server/page/page.h"

/* An open page asks at least so often, and a daemon that could end waits for it at most so long. */
#define PAGE_ASKS_NS (6 * NS_PER_S) /* one that is not seen asks every five seconds */
#define PAGE_WAIT_NS PAGE_ASKS_NS

struct admin {
    struct control *control;
    struct event *status_event;
    struct control_http *http; /* NULL: no metrics */
    uint64_t page_ns;          /* when a page has last asked for all that it shows; 0: never */
    uint64_t page_began_ns;    /* when it began to: with the status */
    uint64_t over_ns;          /* since when the daemon could end; 0: it could not */
    char headers[PAGE_HEADERS_BYTES];
    struct control_http_document documents[4];
};

/* The engine's part is the caller's to clear. */
static int admin_source(struct control *control, struct engine_status *engine,
                        struct status_source *source)
{
    const struct control_options *options = &control->options;
    int result = options->engine.status(options->engine.engine, engine);
    if (result < 0)
        return result;
    *source = (struct status_source){
        .software = CONTROL_SOFTWARE,
        .pid = (uint32_t)getpid(),
        .now_ns = clock_now_ns(),
        .started_ns = control->started_ns,
        .connections = HASH_COUNT(control->workers),
        .instruction_set = options->instruction_set,
        .topology = options->topology,
        .config = control->config,
        .transport = options->engine.transport_info(options->engine.engine),
        .engine = engine,
        .membership = &control->membership,
        .coordinator = control->coordinator,
        .accounts = &control->accounts,
        .rates = &control->rates,
    };
    return 0;
}

/* One line with its newline; the caller frees it. NULL: out of memory. */
static char *admin_status(struct control *control, size_t *length)
{
    struct engine_status engine;
    struct status_source source;
    struct log_line warnings[LOG_RING_LINES_MAX];
    if (admin_source(control, &engine, &source) < 0)
        return NULL;
    if (control->log->ring)
        source.warning_count = log_ring_read(control->log->ring, warnings);
    source.warnings = warnings;
    char *document = status_document(&source, length);
    control->options.engine.status_clear(&engine);
    return document;
}

static void admin_arm_status(struct control *control)
{
    static const struct timeval at_once = {0, 0};
    if (control->status_waiters)
        evtimer_add(control->admin->status_event, &at_once);
}

/* Return the answer in place of a status that cannot be given; NULL: out of memory. */
static char *admin_no_status(size_t status_bytes, size_t *length)
{
    struct message message = {.type = MESSAGE_ERROR, .code = ERR_MEMORY};
    if (status_bytes > 0)
        snprintf(message.text, sizeof(message.text),
                 "the status has %zu bytes, more than the %zu that are allowed", status_bytes,
                 CONTROL_STATUS_MAX_BYTES);
    else
        snprintf(message.text, sizeof(message.text), "no memory for the status");
    return message_encode(&message, length);
}

static void admin_on_status(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct control *control = argument;
    size_t length = 0, copied = 0;
    char *answer = admin_status(control, &length);
    if (!answer || length > CONTROL_STATUS_MAX_BYTES) {
        free(answer);
        answer = admin_no_status(length, &length);
    }
    while (control->status_waiters && copied < CONTROL_OUTPUT_MAX_BYTES) {
        struct control_worker *worker = control->status_waiters;
        DL_DELETE(control->status_waiters, worker);
        worker->wants_status = false;
        control_stream_answer(worker->stream, answer ? answer : "", answer ? length : 0);
        copied += length;
    }
    free(answer);
    admin_arm_status(control);
    control_update_later(control);
}

void admin_want_status(struct control_worker *worker)
{
    struct control *control = worker->control;
    control_stream_hold(worker->stream);
    worker->wants_status = true;
    DL_APPEND(control->status_waiters, worker);
    admin_arm_status(control);
}

void admin_sample(struct control *control)
{
    struct engine_status engine;
    if (control->options.engine.status(control->options.engine.engine, &engine) < 0)
        return;
    status_rates_sample(&control->rates, clock_now_ns(), engine.bytes_in, engine.bytes_out);
    control->options.engine.status_clear(&engine);
}

static char *admin_metrics(struct control *control, size_t *length)
{
    struct engine_status engine;
    struct status_source source;
    struct status_verdict verdicts[CONTROL_VERDICTS];
    if (admin_source(control, &engine, &source) < 0)
        return NULL;
    source.verdicts = verdicts;
    source.verdict_count = control->why_verdicts(control, verdicts);
    char *text = status_metrics(&source, length);
    control->options.engine.status_clear(&engine);
    return text;
}

void admin_accept_again(struct control *control)
{
    control_http_accept_again(control->admin->http);
}

static char *admin_page_status(struct control *control, size_t *length)
{
    control->admin->page_began_ns = clock_now_ns();
    return admin_status(control, length);
}

/* A page asks for this document last. It has all then, but not the end when that came in between.
 */
static char *admin_why(struct control *control, size_t *length)
{
    struct admin *admin = control->admin;
    if (admin->page_began_ns >= admin->over_ns)
        admin->page_ns = clock_now_ns();
    return control->why_document(control, length);
}

bool admin_page_waits(struct control *control, uint64_t now_ns)
{
    struct admin *admin = control->admin;
    if (!admin->http || admin->page_ns == 0)
        return false;
    if (admin->over_ns == 0)
        admin->over_ns = now_ns;
    if (now_ns - admin->over_ns >= PAGE_WAIT_NS || now_ns - admin->page_ns >= PAGE_ASKS_NS)
        return false;
    return admin->page_ns <= admin->over_ns || !control_http_is_idle(admin->http);
}

/* Beside addresses: what the configuration calls a daemon, or the machine itself. */
static bool admin_is_own_name(const struct control *control, const char *name)
{
    const struct config *config = control->config;
    struct utsname machine;
    if (strcasecmp(name, config->metrics_address) == 0 ||
        (uname(&machine) == 0 && strcasecmp(name, machine.nodename) == 0))
        return true;
    for (uint32_t i = 0; i < config->server_count; i++) {
        if (strcasecmp(name, config->servers[i].address) == 0 ||
            strcasecmp(name, config->servers[i].name) == 0)
            return true;
    }
    return false;
}

/* The page reads the two that come behind it. */
static int admin_list_documents(struct admin *admin, struct error *error)
{
    static const char json[] = "application/json";
    struct control_http_document *it = admin->documents;
    if (page_headers(admin->headers) < 0)
        return error_set(error, ERR_SYSTEM, "the page has no policy");
    it[0] =
        (struct control_http_document){.path = "/metrics",
                                       .content_type = "text/plain; version=0.0.4; charset=utf-8",
                                       .make = admin_metrics};
    it[1] = (struct control_http_document){.path = "/",
                                           .content_type = "text/html; charset=utf-8",
                                           .text = page_html,
                                           .length = page_html_bytes,
                                           .headers = admin->headers,
                                           .own_names = true};
    it[2] = (struct control_http_document){
        .path = "/status.json", .content_type = json, .make = admin_page_status, .own_names = true};
    it[3] = (struct control_http_document){
        .path = "/why.json", .content_type = json, .make = admin_why, .own_names = true};
    return 0;
}

static int admin_serve_metrics(struct admin *admin, struct error *error)
{
    struct control *control = admin->control;
    const struct config *config = control->config;
    const char *address = config->metrics_address[0] ? config->metrics_address : "127.0.0.1";
    const struct control_http_options options = {
        .base = control->base,
        .documents = admin->documents,
        .count = sizeof(admin->documents) / sizeof(admin->documents[0]),
        .is_own_name = admin_is_own_name,
        .control = control,
    };
    struct error cause = {0};
    int result = admin_list_documents(admin, error);
    if (result < 0)
        return result;
    if (control_http_create(&admin->http, &options, address, config->metrics_port, &cause) < 0)
        return error_set(error, ERR_SYSTEM, "metrics cannot be served on %s port %u: %s", address,
                         config->metrics_port, cause.text);
    log_info(control->log, "metrics are served at http://%s:%u/metrics, and a page at /", address,
             config->metrics_port);
    return 0;
}

int admin_create(struct admin **created, struct control *control, struct error *error)
{
    const struct config *config = control->config;
    struct admin *admin = calloc(1, sizeof(*admin));
    if (!admin)
        return error_set(error, ERR_MEMORY, "no memory for the administration");
    admin->control = control;
    admin->status_event = evtimer_new(control->base, admin_on_status, control);
    if (!admin->status_event) {
        admin_free(admin);
        return error_set(error, ERR_MEMORY, "no memory for the administration");
    }
    bool serves = config->metrics_port != 0 && !control->options.failure;
    if (serves && admin_serve_metrics(admin, error) < 0) {
        admin_free(admin);
        return ERR_SYSTEM;
    }
    *created = admin;
    return 0;
}

void admin_free(struct admin *admin)
{
    if (!admin)
        return;
    control_http_free(admin->http);
    if (admin->status_event)
        event_free(admin->status_event);
    free(admin);
}
