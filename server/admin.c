/* What administration asks for: the status, and the metrics over HTTP. */
#include <event2/http.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/control_internal.h"

#define HEADERS_BYTES 4096
#define BODY_BYTES 0
#define HTTP_TIMEOUT_S 5

struct admin {
    struct control *control;
    struct evhttp *http; /* NULL: no metrics */
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
        .rates = &control->rates,
    };
    return 0;
}

char *admin_status(struct control *control, size_t *length)
{
    struct engine_status engine;
    struct status_source source;
    if (admin_source(control, &engine, &source) < 0)
        return NULL;
    char *document = status_document(&source, length);
    control->options.engine.status_clear(&engine);
    return document;
}

void admin_sample(struct control *control)
{
    struct engine_status engine;
    if (control->options.engine.status(control->options.engine.engine, &engine) < 0)
        return;
    status_rates_sample(&control->rates, clock_now_ns(), engine.bytes_in, engine.bytes_out);
    control->options.engine.status_clear(&engine);
}

static void admin_on_metrics(struct evhttp_request *request, void *argument)
{
    struct admin *admin = argument;
    struct control *control = admin->control;
    struct engine_status engine;
    struct status_source source;
    if (admin_source(control, &engine, &source) < 0) {
        evhttp_send_error(request, HTTP_SERVUNAVAIL, NULL);
        return;
    }
    size_t length = 0;
    char *text = status_metrics(&source, &length);
    control->options.engine.status_clear(&engine);
    struct evbuffer *body = evbuffer_new();
    if (text && body && evbuffer_add(body, text, length) == 0) {
        evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Type",
                          "application/openmetrics-text; version=1.0.0; charset=utf-8");
        evhttp_send_reply(request, HTTP_OK, "OK", body);
    } else {
        evhttp_send_error(request, HTTP_SERVUNAVAIL, NULL);
    }
    if (body)
        evbuffer_free(body);
    free(text);
}

int admin_create(struct admin **created, struct control *control, struct error *error)
{
    const struct config *config = control->config;
    struct admin *admin = calloc(1, sizeof(*admin));
    if (!admin)
        return error_set(error, ERR_MEMORY, "no memory for the administration");
    admin->control = control;
    if (config->metrics_port != 0) {
        const char *address = config->metrics_address[0] ? config->metrics_address : "127.0.0.1";
        admin->http = evhttp_new(control->base);
        if (!admin->http || evhttp_bind_socket(admin->http, address, config->metrics_port) < 0) {
            admin_free(admin);
            return error_set(error, ERR_SYSTEM, "metrics cannot be served on %s port %u", address,
                             config->metrics_port);
        }
        evhttp_set_max_headers_size(admin->http, HEADERS_BYTES);
        evhttp_set_max_body_size(admin->http, BODY_BYTES);
        evhttp_set_timeout(admin->http, HTTP_TIMEOUT_S);
        evhttp_set_allowed_methods(admin->http, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
        evhttp_set_cb(admin->http, "/metrics", admin_on_metrics, admin);
        log_info(control->log, "metrics are served at http://%s:%u/metrics", address,
                 config->metrics_port);
    }
    *created = admin;
    return 0;
}

void admin_free(struct admin *admin)
{
    if (!admin)
        return;
    if (admin->http)
        evhttp_free(admin->http);
    free(admin);
}
