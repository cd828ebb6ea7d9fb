/* `shoalctl why`: the rank or node that a job waits for. When shoalctl asks, the job's daemons are
 * asked for their accounts, and the conclusion from all of them is the answer. A daemon that serves
 * a page asks by itself, every two seconds, for the jobs whose rank 0 is here: the page begins with
 * the last minutes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/json_text.h"
#include "server/control/ground/control_internal.h"
#include "server/status/status_daemon.h"
#include "server/status/status_steps.h"
#include "server/waits/verdict.h"

#define ANSWERS_MS 1000
/* The page keeps verdicts of so many jobs, shared by the users whose jobs they are, and asks for
 * them anew so often. */
#define PAGE_JOBS_MAX CONTROL_VERDICTS
#define PAGE_NS NS_PER_S
/* A verdict that was found longer ago is in no metric: nobody has asked since. */
#define VERDICT_NS (120 * NS_PER_S)

/* A client of the Unix socket waits for the answer. */
struct why_asker {
    uint32_t worker; /* it may be gone */
    struct why_asker *next;
};

/* A question is about one job. At most one question of each job is open, however many clients wait
 * for its answer, so no client keeps out another. */
struct control_why {
    struct control *control;
    uint32_t number;
    struct why_asker *askers;
    bool page; /* whoever reads the page next waits for it, too */
    uint64_t job;
    char name[MESSAGE_NAME_BYTES];
    struct waits_figures *reports;  /* [roster]: the first `count` have come, this node's first */
    struct overlap_figures overlap; /* on this node */
    struct status_daemon *daemons;  /* [roster]: what these have told of themselves */
    uint32_t count;
    bool *silent; /* [roster]: asked, and it has not answered */
    uint32_t waiting;
    struct event *timer;
    struct control_why *next, *prev;
};

/* The verdict that was last found on a job, for the page. */
struct control_why_page {
    uint64_t job;
    uint32_t uid; /* whose that is */
    char *document;
    size_t length;
    struct verdict verdict; /* what the document has */
    struct status_steps steps;
    uint64_t asked_ns; /* while an answer is on its way, and after it */
    bool asking;
};
struct control_why_pages {
    struct control_why_page pages[PAGE_JOBS_MAX];
    struct quota places;
};

static struct control_why_page *why_page_of(struct control *control, uint64_t job)
{
    for (uint32_t i = 0; control->why_pages && i < PAGE_JOBS_MAX; i++) {
        if (control->why_pages->pages[i].job == job)
            return &control->why_pages->pages[i];
    }
    return NULL;
}

static void why_free(struct control_why *why)
{
    DL_DELETE(why->control->whys, why);
    if (why->timer)
        event_free(why->timer);
    free(why->reports);
    free(why->daemons);
    free(why->silent);
    while (why->askers) {
        struct why_asker *asker = why->askers;
        why->askers = asker->next;
        free(asker);
    }
    free(why);
}

/* False: the job is not on this daemon, or there is no memory to look. */
static bool why_own_figures(struct control *control, uint64_t job, struct waits_figures *figures,
                            struct overlap_figures *overlap, struct status_daemon *daemon)
{
    const struct control_engine *engine = &control->options.engine;
    struct engine_status status;
    bool found = false;
    if (engine->status(engine->engine, &status) < 0)
        return false;
    for (uint32_t i = 0; i < status.job_count && !found; i++) {
        found = status.jobs[i].job == job;
        if (!found)
            continue;
        *figures = status.jobs[i].waits;
        *overlap = status.jobs[i].overlap;
    }
    status_daemon_take(daemon,
                       &(struct status_source){.engine = &status,
                                               .membership = &control->membership,
                                               .config = control->config,
                                               .transport = engine->transport_info(engine->engine),
                                               .started_ns = control->started_ns});
    engine->status_clear(&status);
    return found;
}

/* --- the document ----------------------------------------------------------------------------- */

static void why_put_node(struct json_text *text, const char *key, const struct control *control,
                         uint32_t node)
{
    if (node < control->config->server_count)
        json_text_string(text, key, control->config->servers[node].name);
    else
        json_text_null(text, key);
}

static void why_put_verdict(struct json_text *text, const struct control *control,
                            const struct verdict *verdict)
{
    json_text_string(text, "kind", verdict_kind_name(verdict->kind));
    if (verdict->rank == WAITS_NOBODY)
        json_text_null(text, "rank");
    else
        json_text_uint(text, "rank", verdict->rank);
    why_put_node(text, "of_node", control, verdict->node);
    why_put_node(text, "to_node", control, verdict->to);
    json_text_uint(text, "times", verdict->times);
    json_text_uint(text, "collectives", verdict->collectives);
    json_text_uint(text, "step_collectives", verdict->step);
    json_text_real(text, "window_s", verdict->window_s);
    json_text_real(text, "step_ms", verdict->step_ms);
    json_text_real(text, "lost_ms", verdict->lost_ms);
    json_text_real(text, "without_ms", verdict->without_ms);
    json_text_bool(text, "sure", verdict->sure);
}

static char *why_document(const struct control_why *why, const struct verdict *verdict,
                          size_t *length)
{
    struct control *control = why->control;
    const struct config *config = control->config;
    struct json_text text;
    json_text_init(&text);
    text.shown = true;
    json_text_open_object(&text, NULL);
    json_text_string(&text, "type", "why");
    json_text_string(&text, "job", why->name);
    json_text_string(&text, "node", config->node);
    why_put_verdict(&text, control, verdict);
    json_text_open_array(&text, "silent_nodes");
    for (uint32_t node = 0; node < config->server_count; node++) {
        if (why->silent[node])
            why_put_node(&text, NULL, control, node);
    }
    json_text_close_array(&text);
    json_text_open_array(&text, "reports");
    for (uint32_t i = 0; i < why->count; i++) {
        json_text_open_object(&text, NULL);
        why_put_node(&text, "node", control, why->reports[i].own);
        status_put_waits(&text, &why->reports[i], config);
        json_text_open_object(&text, "daemon");
        status_put_daemon(&text, &why->daemons[i], config);
        json_text_close_object(&text);
        json_text_close_object(&text);
    }
    json_text_close_array(&text);
    json_text_close_object(&text);
    json_text_raw(&text, "\n", 1);
    return json_text_take(&text, length);
}

/* All have answered, or have had their time. */
static void why_answer(struct control_why *why)
{
    struct control_why_page *page = why->page ? why_page_of(why->control, why->job) : NULL;
    size_t length = 0;
    struct verdict verdict;
    verdict_find(&verdict, why->reports, why->count);
    char *document = why_document(why, &verdict, &length);
    for (const struct why_asker *asker = why->askers; asker; asker = asker->next) {
        struct control_worker *worker = control_worker_find(why->control, asker->worker);
        if (worker)
            control_stream_answer(worker->stream, document ? document : "", document ? length : 0);
    }
    if (page) {
        page->verdict = verdict;
        if (why->reports[0].ranks > 0)
            status_steps_add(&page->steps, clock_now_ns(), &verdict, why->reports[0].step,
                             &why->overlap, why->reports[0].own);
        free(page->document);
        page->asking = false;
        page->document = document;
        page->length = document ? length - 1 : 0; /* without its newline */
        document = NULL;
    }
    free(document);
    why_free(why);
}

static void why_on_timer(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct control_why *why = argument;
    struct control *control = why->control;
    why_answer(why);
    control_update_later(control);
}

/* --- the question ----------------------------------------------------------------------------- */

static struct control_why *why_create(struct control *control, const struct job *job)
{
    uint32_t roster = control->config->server_count;
    struct control_why *why = calloc(1, sizeof(*why));
    if (!why)
        return NULL;
    why->control = control;
    why->number = ++control->why_number;
    why->job = job->id;
    snprintf(why->name, sizeof(why->name), "%s", job->name);
    DL_APPEND(control->whys, why);
    why->timer = evtimer_new(control->base, why_on_timer, why);
    why->reports = calloc(roster, sizeof(*why->reports));
    why->daemons = calloc(roster, sizeof(*why->daemons));
    why->silent = calloc(roster, sizeof(*why->silent));
    if (why->timer && why->reports && why->daemons && why->silent)
        return why;
    why_free(why);
    return NULL;
}

static void why_ask_peers(struct control_why *why, const struct job *job)
{
    struct control *control = why->control;
    const struct message query = {
        .type = MESSAGE_WHY_QUERY, .job_id = job->id, .request = why->number};
    for (uint32_t node = 0; node < job->roster; node++) {
        if (node == job->self || !(job->roles[node] & (JOB_NODE_RANKS | JOB_NODE_SERVER)))
            continue;
        why->silent[node] = true;
        why->waiting++;
        control_peer_send(control, node, &query);
    }
}

/* The engine has told nothing yet of a job that has just begun: its window is empty. */
static void why_begin(struct control_why *why, const struct job *job)
{
    struct control *control = why->control;
    struct timeval limit = {ANSWERS_MS / 1000, 0}, at_once = {0, 0};
    why->reports[0] = (struct waits_figures){.own = control->config->self};
    why_own_figures(control, job->id, &why->reports[0], &why->overlap, &why->daemons[0]);
    why->count = 1;
    why_ask_peers(why, job);
    evtimer_add(why->timer, why->waiting > 0 ? &limit : &at_once);
}

/* The question about the job, which may have been under way. NULL: no memory. */
static struct control_why *why_of(struct control *control, const struct job *job)
{
    struct control_why *why = control->whys;
    while (why && why->job != job->id)
        why = why->next;
    if (why)
        return why;
    why = why_create(control, job);
    if (why)
        why_begin(why, job);
    return why;
}

void control_why_ask(struct control_worker *worker, const struct message *message)
{
    struct control *control = worker->control;
    struct error error = {0};
    const struct job *job = admin_find_job(control, message->job, &error);
    if (!job) {
        control_worker_refuse(worker, error.code, error.text);
        return;
    }
    struct why_asker *asker = calloc(1, sizeof(*asker));
    struct control_why *why = asker ? why_of(control, job) : NULL;
    if (!why) {
        free(asker);
        control_worker_refuse(worker, ERR_MEMORY, "no memory for an answer");
        return;
    }
    *asker = (struct why_asker){.worker = worker->id, .next = why->askers};
    why->askers = asker;
    control_stream_hold(worker->stream);
}

/* --- the page --------------------------------------------------------------------------------- */

static void why_page_free(struct control *control, struct control_why_page *page)
{
    quota_give_back(&control->why_pages->places, page->uid, 1);
    free(page->document);
    *page = (struct control_why_page){0};
}

/* The user who has most gives one up. NULL: it is the one who asks. */
static struct control_why_page *why_page_give_up(struct control *control, uint32_t uid)
{
    uint64_t giver = quota_giver(&control->why_pages->places, uid, 1);
    for (uint32_t i = 0; giver != uid && i < PAGE_JOBS_MAX; i++) {
        struct control_why_page *page = &control->why_pages->pages[i];
        if (page->uid != giver)
            continue;
        why_page_free(control, page);
        return page;
    }
    return NULL;
}

/* The job's place, which it keeps while it runs and others have no fewer; NULL: all are taken. */
static struct control_why_page *why_page_take(struct control *control, const struct job *job)
{
    struct control_why_page *page = why_page_of(control, job->id);
    if (page)
        return page;
    page = why_page_of(control, 0);
    if (!page)
        page = why_page_give_up(control, job->uid);
    if (!page || quota_take(&control->why_pages->places, job->uid, 1) != 0)
        return NULL;
    page->job = job->id;
    page->uid = job->uid;
    return page;
}

/* Places of jobs that have ended are free. */
static void why_pages_sweep(struct control *control)
{
    for (uint32_t i = 0; i < PAGE_JOBS_MAX; i++) {
        struct control_why_page *page = &control->why_pages->pages[i];
        const struct job *job = coordinator_jobs(control->coordinator);
        while (job && (job->id != page->job || job->state != JOB_READY))
            job = job->hh.next;
        if (!job && page->job != 0)
            why_page_free(control, page);
    }
}

static void why_page_ask(struct control *control, struct control_why_page *page,
                         const struct job *job)
{
    uint64_t now_ns = clock_now_ns();
    if (page->asking || (page->asked_ns > 0 && now_ns - page->asked_ns < PAGE_NS))
        return;
    struct control_why *why = why_of(control, job);
    if (!why)
        return;
    why->page = true;
    page->asking = true;
    page->asked_ns = now_ns;
}

static bool why_pages_open(struct control *control)
{
    if (!control->why_pages)
        control->why_pages = calloc(1, sizeof(*control->why_pages));
    if (control->why_pages) {
        control->why_pages->places.limit = PAGE_JOBS_MAX;
        why_pages_sweep(control);
    }
    return control->why_pages;
}

/* All daemons are scraped, and one is enough to ask the others. */
static bool why_is_first(const struct job *job)
{
    return job->state == JOB_READY && job->rank_nodes[0] == job->self;
}

void control_why_watch(struct control *control)
{
    const struct job *job = why_pages_open(control) ? coordinator_jobs(control->coordinator) : NULL;
    uint64_t now_ns = clock_now_ns();
    for (; job; job = job->hh.next) {
        struct control_why_page *page = why_is_first(job) ? why_page_take(control, job) : NULL;
        if (page && now_ns - page->asked_ns >= STATUS_STEPS_NS)
            why_page_ask(control, page, job);
    }
}

uint32_t control_why_verdicts(struct control *control,
                              struct status_verdict verdicts[CONTROL_VERDICTS])
{
    uint32_t count = 0;
    uint64_t now_ns = clock_now_ns();
    const struct job *job = why_pages_open(control) ? coordinator_jobs(control->coordinator) : NULL;
    for (; job; job = job->hh.next) {
        struct control_why_page *page = why_is_first(job) ? why_page_take(control, job) : NULL;
        if (!page)
            continue;
        if (page->document && now_ns - page->asked_ns < VERDICT_NS)
            verdicts[count++] = (struct status_verdict){job->id, page->verdict};
        why_page_ask(control, page, job);
    }
    return count;
}

/* Put what the steps of each job that has a place took. */
static void why_put_steps(struct control *control, struct json_text *text)
{
    uint64_t now_ns = clock_now_ns();
    text->comma = true;
    json_text_open_array(text, "steps");
    for (const struct job *job = coordinator_jobs(control->coordinator); job; job = job->hh.next) {
        const struct control_why_page *page = why_page_of(control, job->id);
        if (!page)
            continue;
        json_text_open_object(text, NULL);
        json_text_string(text, "job", job->name);
        json_text_uint(text, "step_collectives", page->steps.step);
        status_put_steps(text, "points", &page->steps, now_ns);
        json_text_close_object(text);
    }
    json_text_close_array(text);
}

char *control_why_document(struct control *control, size_t *length)
{
    struct json_text text;
    uint32_t left_out = 0, put = 0;
    if (!why_pages_open(control))
        return NULL;
    json_text_init(&text);
    text.shown = true;
    json_text_raw(&text, "{\"type\":\"whys\",\"jobs\":[", 23);
    for (const struct job *job = coordinator_jobs(control->coordinator); job; job = job->hh.next) {
        struct control_why_page *page =
            job->state == JOB_READY ? why_page_take(control, job) : NULL;
        left_out += job->state == JOB_READY && !page;
        if (!page)
            continue;
        if (page->document) {
            json_text_raw(&text, ",", put++ > 0);
            json_text_raw(&text, page->document, page->length);
        }
        why_page_ask(control, page, job);
    }
    json_text_raw(&text, "]", 1);
    why_put_steps(control, &text);
    json_text_uint(&text, "left_out", left_out);
    json_text_raw(&text, "}\n", 2);
    return json_text_take(&text, length);
}

/* --- between daemons -------------------------------------------------------------------------- */

static void why_tell(struct control *control, uint32_t node, const struct message *query)
{
    struct waits_figures figures;
    struct overlap_figures overlap;
    struct status_daemon daemon;
    uint32_t words[WAITS_WORDS], daemon_words[STATUS_DAEMON_WORDS_MAX];
    struct message reply = {
        .type = MESSAGE_WHY_REPLY, .job_id = query->job_id, .request = query->request};
    if (why_own_figures(control, query->job_id, &figures, &overlap, &daemon)) {
        waits_pack(&figures, words);
        reply.members = (struct message_list){words, WAITS_WORDS};
        reply.servers =
            (struct message_list){daemon_words, status_daemon_pack(&daemon, daemon_words)};
    }
    control_peer_send(control, node, &reply);
}

static int why_take(struct control *control, uint32_t node, const struct message *reply,
                    struct error *error)
{
    struct waits_figures figures;
    struct status_daemon daemon = {0};
    bool told = reply->members.count > 0;
    if (told && (!waits_unpack(&figures, reply->members.values, reply->members.count) ||
                 figures.own != node))
        return error_set(error, ERR_PROTOCOL, "figures of %u numbers, or of another node",
                         reply->members.count);
    if (told && !status_daemon_unpack(&daemon, reply->servers.values, reply->servers.count,
                                      control->config->server_count))
        return error_set(error, ERR_PROTOCOL, "%u numbers of a daemon, or of unknown nodes",
                         reply->servers.count);
    struct control_why *why = control->whys;
    while (why && (why->number != reply->request || why->job != reply->job_id))
        why = why->next;
    if (!why || !why->silent[node])
        return 0; /* too late */
    why->silent[node] = false;
    if (told) {
        why->daemons[why->count] = daemon;
        why->reports[why->count++] = figures;
    }
    if (--why->waiting == 0)
        why_answer(why);
    return 0;
}

int control_why_told(struct control *control, uint32_t node, const struct message *message,
                     struct error *error)
{
    if (message->type == MESSAGE_WHY_REPLY)
        return why_take(control, node, message, error);
    why_tell(control, node, message);
    return 0;
}

void control_why_clear(struct control *control)
{
    while (control->whys)
        why_free(control->whys); /* NOLINT(clang-analyzer-unix.Malloc) */
    for (uint32_t i = 0; control->why_pages && i < PAGE_JOBS_MAX; i++)
        free(control->why_pages->pages[i].document);
    if (control->why_pages)
        quota_clear(&control->why_pages->places);
    free(control->why_pages);
    control->why_pages = NULL;
}
