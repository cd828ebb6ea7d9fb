#include "common/transport/transport_fabric.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/transport/transport_link.h"

#define FABRIC_API FI_VERSION(1, 17)
#define BITS_PER_MBIT 1000000u
#define SLAB_OPS 64
#define COMPLETION_QUEUE_MAX 65536
#define RETRY_MS 1 /* how often waiting sends are tried again while the user sleeps */

struct fabric_slab {
    struct fabric_slab *next;
    struct fabric_op ops[SLAB_OPS];
};

void fabric_list_append(struct fabric_list *list, struct fabric_op *op)
{
    op->next = NULL;
    op->previous = list->last;
    *(list->last ? &list->last->next : &list->first) = op;
    list->last = op;
}

void fabric_list_remove(struct fabric_list *list, struct fabric_op *op)
{
    *(op->previous ? &op->previous->next : &list->first) = op->next;
    *(op->next ? &op->next->previous : &list->last) = op->previous;
    op->next = op->previous = NULL;
}

int fabric_error(struct error *error, int fi_error, const char *what)
{
    return error_set(error, ERR_SYSTEM, "%s: %s", what, fi_strerror(-fi_error));
}

/* --- choosing --- */

/* Providers whose addresses are IP addresses; the others have one of their own making. */
static bool provider_has_ip(const char *provider)
{
    return strncmp(provider, "tcp", 3) == 0 || strncmp(provider, "verbs", 5) == 0;
}

static struct fi_info *hints_create(const char *provider, bool connected)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return NULL;
    hints->caps = FI_MSG | FI_SEND | FI_RECV | (connected ? 0 : FI_SOURCE);
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->tx_attr->iov_limit = 2; /* a header and a payload */
    hints->ep_attr->type = connected ? FI_EP_MSG : FI_EP_RDM;
    /* This code copes with all of these modes; the provider strikes out those that it does not
     * need. */
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    /* Automatic progress starts a thread in some providers. */
    hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    if (!connected)
        hints->domain_attr->av_type = FI_AV_TABLE;
    hints->fabric_attr->prov_name = strdup(provider);
    if (!hints->fabric_attr->prov_name) {
        fi_freeinfo(hints);
        return NULL;
    }
    return hints;
}

/* Keep the first info of exactly this provider: asking for "tcp" may offer layers over it too. */
static struct fi_info *info_select(struct fi_info *list, const char *provider)
{
    struct fi_info *found = NULL;
    for (struct fi_info *info = list; info && !found; info = info->next) {
        if (strcmp(info->fabric_attr->prov_name, provider) == 0)
            found = fi_dupinfo(info);
    }
    fi_freeinfo(list);
    return found;
}

static struct fi_info *info_find(const struct transport_options *options, bool connected)
{
    struct fi_info *hints = hints_create(options->provider, connected);
    if (!hints)
        return NULL;
    const char *node = provider_has_ip(options->provider) ? options->interface_address : NULL;
    char port[8];
    snprintf(port, sizeof(port), "%u", (unsigned)options->interface_port);
    struct fi_info *list = NULL;
    uint64_t flags = node ? FI_SOURCE | FI_NUMERICHOST : 0;
    /* Queue sizes are wishes: operations that a smaller queue refuses wait here. */
    hints->tx_attr->size = options->sends_per_peer;
    hints->rx_attr->size = options->receives_per_peer;
    int code = fi_getinfo(FABRIC_API, node, node ? port : NULL, flags, hints, &list);
    if (code) {
        hints->tx_attr->size = hints->rx_attr->size = 0;
        code = fi_getinfo(FABRIC_API, node, node ? port : NULL, flags, hints, &list);
    }
    fi_freeinfo(hints);
    return code ? NULL : info_select(list, options->provider);
}

void fabric_signals_save(struct fabric_signals *signals)
{
    for (int number = 1; number < NSIG; number++)
        (void)sigaction(number, NULL, &signals->actions[number]);
}

void fabric_signals_restore(const struct fabric_signals *signals)
{
    for (int number = 1; number < NSIG; number++) {
        struct sigaction now;
        if (sigaction(number, NULL, &now) == 0 &&
            now.sa_handler != signals->actions[number].sa_handler)
            (void)sigaction(number, &signals->actions[number], NULL);
    }
}

bool transport_fabric_available(const char *provider, bool connected, const char *interface_address)
{
    struct fabric_signals signals;
    fabric_signals_save(&signals);
    struct transport_options options = {.provider = provider,
                                        .interface_address = interface_address};
    struct fi_info *info = info_find(&options, connected);
    fabric_signals_restore(&signals);
    if (info)
        fi_freeinfo(info);
    return info != NULL;
}

/* --- opening --- */

static int queue_open(struct fabric *fabric, enum fi_wait_obj wait, size_t size)
{
    struct fi_cq_attr attributes = {.size = size, .format = FI_CQ_FORMAT_MSG, .wait_obj = wait};
    return fi_cq_open(fabric->domain, &attributes, &fabric->cq, NULL);
}

static int queues_open(struct fabric *fabric, bool connected, struct error *error)
{
    uint64_t wanted =
        (uint64_t)fabric->peers * (fabric->sends_per_peer + fabric->receives_per_peer);
    size_t size = wanted < COMPLETION_QUEUE_MAX ? (size_t)wanted : COMPLETION_QUEUE_MAX;
    bool waits = true;
    int code = queue_open(fabric, FI_WAIT_FD, size);
    if (code)
        code = queue_open(fabric, FI_WAIT_FD, 0);
    if (code) {
        waits = false;
        code = queue_open(fabric, FI_WAIT_NONE, size);
    }
    if (code)
        code = queue_open(fabric, FI_WAIT_NONE, 0);
    if (code)
        return fabric_error(error, code, "fi_cq_open");
    if (connected) {
        struct fi_eq_attr attributes = {.wait_obj = waits ? FI_WAIT_FD : FI_WAIT_NONE};
        code = fi_eq_open(fabric->fid, &attributes, &fabric->eq, NULL);
        if (code)
            return fabric_error(error, code, "fi_eq_open");
    }
    if (waits)
        fabric->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    return waits && fabric->epoll_fd < 0 ? error_set_errno(error, errno, "epoll_create1") : 0;
}

static int descriptor_watch(struct fabric *fabric, int fd, struct error *error)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    if (epoll_ctl(fabric->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        return error_set_errno(error, errno, "epoll_ctl");
    return 0;
}

/* One descriptor over all that may have news. */
static int descriptors_open(struct fabric *fabric, struct error *error)
{
    if (fabric->epoll_fd < 0)
        return 0;
    fabric->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (fabric->timer_fd < 0)
        return error_set_errno(error, errno, "timerfd_create");
    int code = descriptor_watch(fabric, fabric->timer_fd, error);
    struct fid *fids[] = {&fabric->cq->fid, fabric->eq ? &fabric->eq->fid : NULL};
    for (int i = 0; i < 2 && code == 0; i++) {
        int fd = -1;
        if (!fids[i])
            continue;
        int result = fi_control(fids[i], FI_GETWAIT, &fd);
        code = result ? fabric_error(error, result, "FI_GETWAIT")
                      : descriptor_watch(fabric, fd, error);
    }
    return code;
}

static int domain_open(struct fabric *fabric, bool connected, struct error *error)
{
    int code = fi_fabric(fabric->info->fabric_attr, &fabric->fid, NULL);
    if (code)
        return fabric_error(error, code, "fi_fabric");
    code = fi_domain(fabric->fid, fabric->info, &fabric->domain, NULL);
    if (code)
        return fabric_error(error, code, "fi_domain");
    code = queues_open(fabric, connected, error);
    return code ? code : descriptors_open(fabric, error);
}

int fabric_open(struct fabric *fabric, const struct transport_options *options, bool connected,
                struct error *error)
{
    fabric->log = options->log;
    fabric->peers = options->peers;
    fabric->sends_per_peer = options->sends_per_peer;
    fabric->receives_per_peer = options->receives_per_peer;
    fabric->epoll_fd = fabric->timer_fd = -1;

    struct fabric_signals signals;
    fabric_signals_save(&signals);
    fabric->info = info_find(options, connected);
    int code = 0;
    if (!fabric->info)
        code = error_set(error, ERR_UNSUPPORTED, "libfabric has no provider \"%s\" on %s",
                         options->provider,
                         options->interface_address ? options->interface_address : "any interface");
    else if (fabric->info->ep_attr->max_msg_size < options->message_bytes)
        code = error_set(error, ERR_UNSUPPORTED,
                         "fabric provider \"%s\" carries at most %zu bytes in a message, not %u",
                         options->provider, fabric->info->ep_attr->max_msg_size,
                         options->message_bytes);
    else
        code = domain_open(fabric, connected, error);
    fabric_signals_restore(&signals);
    if (code) {
        fabric_close(fabric);
        return code;
    }
    struct transport_info *info = &fabric->transport.info;
    snprintf(info->provider, sizeof(info->provider), "%s", options->provider);
    snprintf(info->endpoint, sizeof(info->endpoint), connected ? "connected" : "datagram");
    uint32_t version = fi_version();
    snprintf(info->version, sizeof(info->version), "libfabric %u.%u", FI_MAJOR(version),
             FI_MINOR(version));
    info->per_peer_receives = connected;
    info->ordered = connected;
    return 0;
}

void fabric_close(struct fabric *fabric)
{
    if (fabric->timer_fd >= 0)
        close(fabric->timer_fd);
    if (fabric->epoll_fd >= 0)
        close(fabric->epoll_fd);
    if (fabric->cq)
        fi_close(&fabric->cq->fid);
    if (fabric->domain)
        fi_close(&fabric->domain->fid);
    if (fabric->eq)
        fi_close(&fabric->eq->fid);
    if (fabric->fid)
        fi_close(&fabric->fid->fid);
    if (fabric->info)
        fi_freeinfo(fabric->info);
    while (fabric->slabs) {
        struct fabric_slab *next = fabric->slabs->next;
        free(fabric->slabs);
        fabric->slabs = next;
    }
}

static bool address_is_socket(const struct fi_info *info)
{
    return info->addr_format == FI_SOCKADDR || info->addr_format == FI_SOCKADDR_IN ||
           info->addr_format == FI_SOCKADDR_IN6;
}

void fabric_describe(struct fabric *fabric, const void *address, size_t bytes)
{
    struct transport_info *info = &fabric->transport.info;
    const struct fid_nic *nic = fabric->info->nic;
    fabric_format_address(fabric->info, address, bytes, info->local, sizeof(info->local));
    if (nic && nic->link_attr && nic->link_attr->speed / BITS_PER_MBIT <= UINT32_MAX)
        info->link_mbits = (uint32_t)(nic->link_attr->speed / BITS_PER_MBIT);
    if (info->link_mbits == 0 && address_is_socket(fabric->info) &&
        bytes >= sizeof(struct sockaddr_in))
        info->link_mbits = transport_link_mbits_at(address);
}

bool fabric_address_take(const struct fi_info *info, const void *own, size_t own_bytes,
                         const void *address, size_t bytes, uint8_t here[TRANSPORT_ADDRESS_BYTES])
{
    if (bytes == 0 || bytes > TRANSPORT_ADDRESS_BYTES)
        return false;
    memcpy(here, address, bytes);
    if (info->addr_format == FI_ADDR_STR)
        return here[bytes - 1] == '\0';
    if (bytes != own_bytes ||
        (address_is_socket(info) && memcmp(here, own, sizeof(sa_family_t)) != 0))
        return false;
    struct sockaddr_in6 it, mine;
    if (!address_is_socket(info) || bytes < sizeof(it))
        return true;
    memcpy(&it, here, sizeof(it));
    memcpy(&mine, own, sizeof(mine));
    if (it.sin6_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&it.sin6_addr)) {
        it.sin6_scope_id = mine.sin6_scope_id;
        memcpy(here, &it, sizeof(it));
    }
    return true;
}

void fabric_format_address(const struct fi_info *info, const void *address, size_t bytes,
                           char *text, size_t room)
{
    char host[INET6_ADDRSTRLEN] = "";
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    sa_family_t family = AF_UNSPEC;
    snprintf(text, room, "(%zu bytes)", bytes);
    if (!address)
        return;
    if (info->addr_format == FI_ADDR_STR) {
        snprintf(text, room, "%.*s", (int)bytes, (const char *)address);
        return;
    }
    if (!address_is_socket(info))
        return;
    if (bytes >= sizeof(family))
        memcpy(&family, address, sizeof(family));
    if (family == AF_INET && bytes >= sizeof(v4)) {
        memcpy(&v4, address, sizeof(v4));
        inet_ntop(AF_INET, &v4.sin_addr, host, sizeof(host));
        snprintf(text, room, "%s:%u", host, ntohs(v4.sin_port));
    } else if (family == AF_INET6 && bytes >= sizeof(v6)) {
        memcpy(&v6, address, sizeof(v6));
        inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof(host));
        snprintf(text, room, "[%s]:%u", host, ntohs(v6.sin6_port));
    }
}

void fabric_address_text(const struct transport *transport, const uint8_t *address, uint32_t bytes,
                         char *text, size_t room)
{
    fabric_format_address(((const struct fabric *)transport)->info, address, bytes, text, room);
}

/* --- operations and events --- */

struct fabric_op *fabric_op_get(struct fabric *fabric)
{
    if (!fabric->free.first) {
        struct fabric_slab *slab = calloc(1, sizeof(*slab));
        if (!slab)
            return NULL;
        slab->next = fabric->slabs;
        fabric->slabs = slab;
        for (int i = 0; i < SLAB_OPS; i++)
            fabric_list_append(&fabric->free, &slab->ops[i]);
    }
    struct fabric_op *op = fabric->free.first;
    fabric_list_remove(&fabric->free, op);
    memset(op, 0, sizeof(*op));
    return op;
}

void fabric_op_put(struct fabric *fabric, struct fabric_op *op)
{
    assert(op->kind == FABRIC_SEND || op->kind == FABRIC_RECEIVE);
    op->state = FABRIC_FREE;
    /* Last in, last out: a provider that reports it twice does so before it is used again. */
    fabric_list_append(&fabric->free, op);
}

void fabric_op_set(struct fabric_op *op, enum fabric_op_kind kind, uint32_t peer,
                   const struct iovec *parts, void *const *registrations, unsigned part_count,
                   void *context)
{
    op->kind = kind;
    op->peer = peer;
    op->context = context;
    op->part_count = part_count;
    for (unsigned i = 0; i < part_count; i++) {
        struct fid_mr *region = registrations ? registrations[i] : NULL;
        op->parts[i] = parts[i];
        op->descriptors[i] = region ? fi_mr_desc(region) : NULL;
    }
}

ssize_t fabric_op_post(struct fid_ep *endpoint, struct fabric_op *op, fi_addr_t address)
{
    if (op->kind == FABRIC_RECEIVE)
        return fi_recvv(endpoint, op->parts, op->descriptors, op->part_count, FI_ADDR_UNSPEC,
                        &op->fi);
    return fi_sendv(endpoint, op->parts, op->descriptors, op->part_count, address, &op->fi);
}

void fabric_event_push(struct fabric *fabric, struct fabric_op *op, int status)
{
    op->state = FABRIC_DONE;
    op->status = status;
    fabric_list_append(&fabric->events, op);
    fabric->event_count++;
}

void fabric_event_withdraw(struct fabric *fabric, struct fabric_op *op)
{
    if (op->state != FABRIC_DONE)
        return;
    op->state = FABRIC_FREE;
    fabric_list_remove(&fabric->events, op);
    fabric->event_count--;
}

int fabric_event_take(struct fabric *fabric, struct transport_event *events, int room)
{
    int count = 0;
    while (count < room && fabric->events.first) {
        struct fabric_op *op = fabric->events.first;
        struct transport_event *event = &events[count++];
        fabric_event_withdraw(fabric, op);
        event->status = op->status;
        event->peer = op->peer;
        event->bytes = op->bytes;
        event->context = op->kind == FABRIC_DOWN ? NULL : op->context;
        event->text[0] = '\0';
        switch (op->kind) {
        case FABRIC_SEND:
            event->type = TRANSPORT_SENT;
            break;
        case FABRIC_RECEIVE:
            event->type = op->status == 0 ? TRANSPORT_RECEIVED : TRANSPORT_RETURNED;
            break;
        case FABRIC_UP:
            event->type = TRANSPORT_PEER_UP;
            continue;
        case FABRIC_DOWN:
            event->type = TRANSPORT_PEER_DOWN;
            snprintf(event->text, sizeof(event->text), "%s", (const char *)op->context);
            continue;
        }
        fabric_op_put(fabric, op);
    }
    return count;
}

/* --- progress --- */

static int progress_error(struct fabric *fabric)
{
    struct fi_cq_err_entry entry;
    memset(&entry, 0, sizeof(entry));
    ssize_t got = fi_cq_readerr(fabric->cq, &entry, 0);
    if (got <= 0)
        return 0;
    if (!entry.op_context) {
        log_warning(fabric->log, "fabric: %s without an operation", fi_strerror(entry.err));
        return 1;
    }
    struct fabric_op *op = entry.op_context;
    fabric->complete(fabric, op, entry.err ? entry.err : FI_EIO, 0, FI_ADDR_NOTAVAIL);
    return 1;
}

/* Count the failure, and log it if the count is a power of two: the queue may stay unreadable for
 * good, and is read again in every round. */
static void progress_failed(struct fabric *fabric, int fi_error)
{
    uint64_t count = ++fabric->read_failures;
    fabric->unreadable = true;
    if ((count & (count - 1)) == 0)
        log_error(fabric->log, "fabric: completion queue: %s (%llu so far)", fi_strerror(fi_error),
                  (unsigned long long)count);
}

int fabric_progress(struct fabric *fabric)
{
    struct fi_cq_msg_entry entries[FABRIC_BATCH];
    fi_addr_t sources[FABRIC_BATCH];
    bool connected = fabric->eq != NULL;
    ssize_t count = connected ? fi_cq_read(fabric->cq, entries, FABRIC_BATCH)
                              : fi_cq_readfrom(fabric->cq, entries, FABRIC_BATCH, sources);
    fabric->unreadable = false;
    if (count == -FI_EAVAIL)
        return progress_error(fabric);
    if (count == -FI_EAGAIN || count == 0)
        return 0;
    if (count < 0) {
        progress_failed(fabric, (int)-count);
        return 0;
    }
    for (ssize_t i = 0; i < count; i++) {
        /* A peer may cause completions of other kinds (remote writes); none is asked for. */
        if (entries[i].op_context && (entries[i].flags & (FI_SEND | FI_RECV)))
            fabric->complete(fabric, entries[i].op_context, 0, (uint32_t)entries[i].len,
                             connected ? FI_ADDR_NOTAVAIL : sources[i]);
    }
    return (int)count;
}

/* --- memory and sleeping --- */

int fabric_register_memory(struct transport *transport, void *address, size_t bytes,
                           void **registration, struct error *error)
{
    struct fabric *fabric = (struct fabric *)transport;
    struct fid_mr *region = NULL;
    if (!(fabric->info->domain_attr->mr_mode & FI_MR_LOCAL)) {
        *registration = NULL;
        return 0;
    }
    int code = fi_mr_reg(fabric->domain, address, bytes, FI_SEND | FI_RECV, 0, fabric->next_key, 0,
                         &region, NULL);
    if (code)
        return fabric_error(error, code, "fi_mr_reg");
    fabric->next_key++;
    *registration = region;
    return 0;
}

void fabric_unregister_memory(struct transport *transport, void *registration)
{
    struct fid_mr *region = registration;
    struct fabric *fabric = (struct fabric *)transport;
    int code = fi_close(&region->fid);
    if (code)
        log_warning(fabric->log, "fabric: unregistering memory: %s", fi_strerror(-code));
}

int fabric_descriptor(const struct transport *transport)
{
    return ((const struct fabric *)transport)->epoll_fd;
}

/* Nothing need become readable when a waiting send could go on: a timer does it. */
static void timer_update(struct fabric *fabric)
{
    bool wanted = fabric->waiting > 0;
    uint64_t expirations;
    if (fabric->timer_on && read(fabric->timer_fd, &expirations, sizeof(expirations)) < 0)
        assert(errno == EAGAIN || errno == EINTR);
    if (wanted == fabric->timer_on)
        return;
    struct itimerspec times = {{0, 0}, {0, 0}};
    if (wanted)
        times.it_value.tv_nsec = times.it_interval.tv_nsec = RETRY_MS * (long)NS_PER_MS;
    fabric->timer_on = timerfd_settime(fabric->timer_fd, 0, &times, NULL) == 0 && wanted;
}

bool fabric_can_sleep(struct transport *transport)
{
    struct fabric *fabric = (struct fabric *)transport;
    if (fabric->events.first)
        return false;
    if (fabric->epoll_fd < 0)
        return true;
    timer_update(fabric);
    struct fid *fids[2] = {&fabric->cq->fid, fabric->eq ? &fabric->eq->fid : NULL};
    return fi_trywait(fabric->fid, fids, fabric->eq ? 2 : 1) == 0;
}
