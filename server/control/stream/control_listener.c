#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"

#define BACKLOG 128
#define BACKLOG_TCP 512 /* strangers come here */

bool control_address_is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)address;
        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    if (address->sa_family != AF_INET6)
        return false;
    const struct in6_addr *in6 = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(in6) || (IN6_IS_ADDR_V4MAPPED(in6) && in6->s6_addr[12] == 127);
}

void control_address_text(const struct sockaddr *address, char *text, size_t bytes)
{
    char host[64] = "?", port[16] = "?";
    socklen_t length =
        address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    getnameinfo(address, length, host, sizeof(host), port, sizeof(port),
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(text, bytes, address->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

static int listener_unix_socket(struct error *error)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        error_set_errno(error, errno, "a Unix socket");
    return fd;
}

/* A socket file that nobody listens on is removed. */
static int listener_unix_remove_stale(const struct sockaddr_un *address, struct error *error)
{
    struct stat status;
    if (lstat(address->sun_path, &status) < 0)
        return 0;
    if (!S_ISSOCK(status.st_mode))
        return error_set(error, ERR_REFUSED, "%s is there and is not a socket", address->sun_path);
    int fd = listener_unix_socket(error);
    if (fd < 0)
        return ERR_SYSTEM;
    int result = connect(fd, (const struct sockaddr *)address, sizeof(*address));
    int cause = errno;
    close(fd);
    if (result == 0 || cause == EAGAIN)
        return error_set(error, ERR_REFUSED, "another daemon answers on %s", address->sun_path);
    if (cause != ECONNREFUSED)
        return error_set_errno(error, cause, "%s", address->sun_path);
    if (unlink(address->sun_path) < 0)
        return error_set_errno(error, errno, "removing the stale socket %s", address->sun_path);
    return 0;
}

int control_listen_unix(const struct control *control, int *listening, struct stat *file,
                        struct error *error)
{
    const struct config *config = control->config;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(config->socket_path) >= sizeof(address.sun_path))
        return error_set(error, ERR_CONFIG, "socket.path %s has %zu bytes, allowed are %zu",
                         config->socket_path, strlen(config->socket_path),
                         sizeof(address.sun_path) - 1);
    memcpy(address.sun_path, config->socket_path, strlen(config->socket_path) + 1);
    int result = listener_unix_remove_stale(&address, error);
    if (result < 0)
        return result;
    int fd = listener_unix_socket(error);
    if (fd < 0)
        return ERR_SYSTEM;
    /* Closed to all until the mode is set; connecting needs write permission. */
    mode_t mask = umask(0777);
    result = bind(fd, (struct sockaddr *)&address, sizeof(address));
    int cause = errno;
    umask(mask);
    if (result < 0) {
        close(fd);
        return error_set_errno(error, cause, "binding %s", address.sun_path);
    }
    if (chmod(address.sun_path, config->socket_mode) < 0 || lstat(address.sun_path, file) < 0 ||
        listen(fd, BACKLOG) < 0) {
        cause = errno;
        close(fd);
        unlink(address.sun_path);
        return error_set_errno(error, cause, "listening on %s", address.sun_path);
    }
    *listening = fd;
    return 0;
}

void control_unlink_unix(const struct control *control, const struct stat *file)
{
    struct stat now;
    const char *path = control->config->socket_path;
    if (lstat(path, &now) == 0 && now.st_dev == file->st_dev && now.st_ino == file->st_ino)
        unlink(path);
}

static int listener_tcp_socket(const struct addrinfo *found, int *listening)
{
    int one = 1;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 &&
        bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, BACKLOG_TCP) == 0) {
        *listening = fd;
        return 0;
    }
    int cause = errno;
    close(fd);
    return cause;
}

static int listener_lookup(const char *address, uint16_t port, struct addrinfo **found,
                           struct error *error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    char text[8];
    snprintf(text, sizeof(text), "%u", port);
    int cause = getaddrinfo(address, text, &hints, found);
    if (cause == 0)
        return 0;
    /* A name server that is not there yet is no fault of the configuration. */
    return error_set(error, cause == EAI_AGAIN ? ERR_SYSTEM : ERR_CONFIG, "%s: %s", address,
                     gai_strerror(cause));
}

int control_listen_address(const char *address, uint16_t port, int *listening, struct error *error)
{
    struct addrinfo *found;
    int result = listener_lookup(address, port, &found, error);
    if (result < 0)
        return result;
    int cause = listener_tcp_socket(found, listening);
    freeaddrinfo(found);
    return cause == 0 ? 0 : error_set_errno(error, cause, "%s port %u", address, port);
}

int control_listen_tcp(const struct control *control, int *listening, struct error *error)
{
    const struct config *config = control->config;
    struct addrinfo *found;
    int cause = 0,
        result = listener_lookup(config->listen_address, config->listen_port, &found, error);
    if (result < 0) {
        error_prefix(error, "listen.address");
        return result;
    }
    if (!credentials_present(control->options.credentials) &&
        !control_address_is_loopback(found->ai_addr))
        result = error_set(error, ERR_CONFIG,
                           "listen.address %s is not a loopback address: that needs a secret_file",
                           config->listen_address);
    else
        cause = listener_tcp_socket(found, listening);
    freeaddrinfo(found);
    return cause == 0 ? result
                      : error_set_errno(error, cause, "listening on %s port %u",
                                        config->listen_address, config->listen_port);
}
