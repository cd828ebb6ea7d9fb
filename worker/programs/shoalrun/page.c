#include "worker/programs/shoalrun/page.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/format/message.h"
#include "worker/job/client.h"
#include "worker/programs/shoalrun/launcher.h"

#define ANSWER_S 10 /* a daemon that has just been started reads its configuration first */

int page_reserve(int *fd, uint16_t *port, struct error *error)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int always = 1;
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* A socket that is bound and does not listen shares its port with one that will. */
    if (*fd < 0 || bind(*fd, (struct sockaddr *)&address, sizeof(address)) ||
        setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &always, sizeof(always)) ||
        getsockname(*fd, (struct sockaddr *)&address, &bytes))
        return error_set_errno(error, errno, "cannot find a port for the page");
    *port = ntohs(address.sin_port);
    return 0;
}

/* Open the conversation, which ends when the daemon does not answer. */
static FILE *page_open(const char *socket_path, struct error *error)
{
    struct client client;
    struct timeval limit = {.tv_sec = ANSWER_S};
    if (client_connect(&client, socket_path, clock_now_ns() + ANSWER_S * NS_PER_S, error) < 0)
        return NULL;
    FILE *file = NULL;
    if (setsockopt(client.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0 &&
        fcntl(client.fd, F_SETFL, 0) == 0)
        file = fdopen(client.fd, "r");
    if (file)
        return file;
    error_set_errno(error, errno, "cannot ask the daemon at %s for its page", socket_path);
    client_close(&client);
    return NULL;
}

static int page_ask(FILE *file, char url[LAUNCH_URL_BYTES])
{
    char ask[192], *line = NULL;
    size_t room = 0;
    int length =
        snprintf(ask, sizeof(ask),
                 "{\"type\":\"hello\",\"protocol\":%u,\"software\":\"shoalrun " SHOAL_VERSION
                 "\",\"pid\":%d}\n{\"type\":\"status\"}\n",
                 MESSAGE_PROTOCOL, (int)getpid());
    bool told = send(fileno(file), ask, (size_t)length, MSG_NOSIGNAL) == length;
    for (int i = 0; told && i < 2; i++) /* its hello, and the status */
        told = getline(&line, &room, file) > 0;
    int result = told ? launch_status_page(line, url) : ERR_DISCONNECTED;
    free(line);
    return result;
}

int page_announce(const char *socket_path, struct error *error)
{
    char url[LAUNCH_URL_BYTES];
    FILE *file = page_open(socket_path, error);
    if (!file)
        return error->code;
    int result = page_ask(file, url);
    fclose(file);
    if (result == ERR_DISCONNECTED)
        return error_set(error, result, "the daemon at %s does not say where its page is",
                         socket_path);
    if (result < 0)
        return error_set(error, ERR_INVALID,
                         "--page: the daemon at %s serves none; set metrics.port in its "
                         "configuration, or have --nodes 1 start another",
                         socket_path);
    fprintf(stderr, "shoalrun: the job's page is at %s\n", url);
    return 0;
}
