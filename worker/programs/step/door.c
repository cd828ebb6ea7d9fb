#include "worker/programs/step/door.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"

#define LINE_BYTES 4096
#define STRANGER_MS 5000

struct guest {
    int fd;
    uint32_t used;
    uint64_t until_ns;
    char *text; /* [LINE_BYTES] */
};

struct door {
    int fd;
    uint16_t port;
    uint32_t count, limit;
    struct guest *guests;   /* [limit], the first come first */
    struct pollfd *watched; /* [limit + 2]: alive, the door, and the guests */
};

struct door *door_open(uint16_t port, uint32_t limit, struct error *error)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct door *door = calloc(1, sizeof(*door));
    struct guest *guests = calloc(limit, sizeof(*guests));
    struct pollfd *watched = calloc((size_t)limit + 2, sizeof(*watched));
    if (!door || !guests || !watched) {
        free(door);
        free(guests);
        free(watched);
        error_set(error, ERR_MEMORY, "out of memory");
        return NULL;
    }
    *door = (struct door){.port = port, .limit = limit, .guests = guests, .watched = watched};
    int yes = 1;
    door->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (door->fd < 0 || setsockopt(door->fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) ||
        bind(door->fd, (struct sockaddr *)&address, sizeof(address)) ||
        listen(door->fd, SOMAXCONN)) {
        error_set_errno(error, errno, "cannot listen at port %u", port);
        door_close(door);
        return NULL;
    }
    return door;
}

/* Out of the row, which stays in order. The connection is the caller's, or closed. */
static void door_forget(struct door *door, uint32_t index)
{
    free(door->guests[index].text);
    door->guests[index].text = NULL;
    door->count--;
    memmove(&door->guests[index], &door->guests[index + 1],
            (door->count - index) * sizeof(door->guests[0]));
}

static void door_send_away(struct door *door, uint32_t index, const char *why)
{
    fprintf(stderr, "shoalrun: somebody at port %u is sent away: %s\n", door->port, why);
    close(door->guests[index].fd);
    door_forget(door, index);
}

void door_close(struct door *door)
{
    if (!door)
        return;
    while (door->count) {
        close(door->guests[0].fd);
        door_forget(door, 0);
    }
    if (door->fd >= 0)
        close(door->fd);
    free(door->guests);
    free(door->watched);
    free(door);
}

static int door_take(struct door *door, struct error *error)
{
    if (door->count == door->limit)
        door_send_away(door, 0, "it says nothing while others wait");
    int fd = accept4(door->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE) && door->count) {
        door_send_away(door, 0, "there are no descriptors for more");
        return 0;
    }
    if (fd < 0)
        return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED
                   ? 0
                   : error_set_errno(error, errno, "cannot accept the other nodes");
    char *text = malloc(LINE_BYTES);
    if (!text) {
        close(fd);
        return error_set(error, ERR_MEMORY, "out of memory");
    }
    door->guests[door->count++] = (struct guest){
        .fd = fd, .text = text, .until_ns = clock_now_ns() + STRANGER_MS * NS_PER_MS};
    return 0;
}

/* 1: its line is whole; 0: not yet; -1: it is to go, and why. */
static int door_hear(struct guest *guest, const char **why)
{
    ssize_t got =
        recv(guest->fd, guest->text + guest->used, LINE_BYTES - guest->used, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    *why = "it closed the connection";
    if (got <= 0)
        return -1;
    guest->used += (uint32_t)got;
    if (guest->text[guest->used - 1] == '\n')
        return 1;
    *why = "its line is too long";
    return guest->used < LINE_BYTES ? 0 : -1;
}

/* From the last to the first, since some go. */
static int door_hear_all(struct door *door, int *connection, char **line)
{
    uint64_t now_ns = clock_now_ns();
    for (uint32_t i = door->count; i-- > 0;) {
        struct guest *guest = &door->guests[i];
        const char *why = "it says nothing";
        int heard = door->watched[i + 2].revents ? door_hear(guest, &why) : 0;
        if (heard > 0) {
            guest->text[guest->used - 1] = 0;
            *connection = guest->fd;
            *line = guest->text;
            guest->text = NULL;
            door_forget(door, i);
            return 1;
        }
        if (heard < 0 || now_ns >= guest->until_ns)
            door_send_away(door, i, why);
    }
    return 0;
}

int door_next(struct door *door, int alive, uint64_t deadline_ns, int *connection, char **line,
              struct error *error)
{
    for (;;) {
        uint64_t now_ns = clock_now_ns();
        uint64_t until_ns = door->count && door->guests[0].until_ns < deadline_ns
                                ? door->guests[0].until_ns
                                : deadline_ns;
        if (now_ns >= deadline_ns)
            return 0;
        door->watched[0] = (struct pollfd){.fd = alive};
        door->watched[1] = (struct pollfd){.fd = door->fd, .events = POLLIN};
        for (uint32_t i = 0; i < door->count; i++)
            door->watched[i + 2] = (struct pollfd){.fd = door->guests[i].fd, .events = POLLIN};
        int ready = poll(door->watched, door->count + 2,
                         until_ns > now_ns ? (int)((until_ns - now_ns) / NS_PER_MS + 1) : 0);
        if (ready < 0 && errno != EINTR)
            return error_set_errno(error, errno, "cannot wait for the other nodes");
        if (ready <= 0)
            for (uint32_t i = 0; i < door->count + 2; i++)
                door->watched[i].revents = 0;
        if (door->watched[0].revents)
            return error_set(error, ERR_STATE, "nobody waits for this node's daemon any more");
        if (door_hear_all(door, connection, line))
            return 1;
        int code = door->watched[1].revents ? door_take(door, error) : 0;
        if (code < 0)
            return code;
    }
}
