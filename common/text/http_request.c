#include "common/text/http_request.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

/* A character of a method (RFC 9110, token). */
static bool http_is_token(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c));
}

/* The byte behind the empty line that ends the headers, or NULL. A line may end without a '\r', as
 * section 2.2 allows. */
static const char *http_find_end(const char *bytes, size_t length)
{
    const char *line = bytes, *end = bytes + length, *newline;
    while ((newline = memchr(line, '\n', (size_t)(end - line))) != NULL) {
        size_t bytes_of_line = (size_t)(newline - line);
        bool empty = bytes_of_line == 0 || (bytes_of_line == 1 && line[0] == '\r');
        if (empty && line != bytes)
            return newline + 1;
        line = newline + 1;
    }
    return NULL;
}

/* " HTTP/1.x", with nothing behind it. */
static bool http_is_version(const char *text, size_t length)
{
    static const char start[] = " HTTP/1.";
    return length == sizeof(start) && memcmp(text, start, sizeof(start) - 1) == 0 &&
           text[length - 1] >= '0' && text[length - 1] <= '9';
}

static int http_take_target(struct http_request *request, const char *target, size_t length)
{
    const char *space = memchr(target, ' ', length);
    if (!space || !http_is_version(space, length - (size_t)(space - target)))
        return HTTP_STATUS_BAD_REQUEST;
    size_t whole = (size_t)(space - target);
    for (size_t i = 0; i < whole; i++) {
        if (target[i] <= ' ' || target[i] >= 0x7f)
            return HTTP_STATUS_BAD_REQUEST;
    }
    const char *question = memchr(target, '?', whole);
    size_t path = question ? (size_t)(question - target) : whole;
    if (path == 0 || target[0] != '/' || path >= sizeof(request->path))
        return HTTP_STATUS_NOT_FOUND;
    memcpy(request->path, target, path);
    request->path[path] = '\0';
    return HTTP_STATUS_OK;
}

static int http_take_line(struct http_request *request, const char *line, size_t length)
{
    static const char get[] = "GET ", head[] = "HEAD ";
    if (length > 0 && line[length - 1] == '\r')
        length--;
    size_t method = 0;
    while (method < length && http_is_token(line[method]))
        method++;
    if (method == 0 || method == length || line[method] != ' ')
        return HTTP_STATUS_BAD_REQUEST;
    method++;
    request->head = method == sizeof(head) - 1 && memcmp(line, head, method) == 0;
    bool known = request->head || (method == sizeof(get) - 1 && memcmp(line, get, method) == 0);
    int status = http_take_target(request, line + method, length - method);
    return status != HTTP_STATUS_BAD_REQUEST && !known ? HTTP_STATUS_NOT_ALLOWED : status;
}

/* "name", "name:port", "[address]:port". */
static int http_take_host(struct http_request *request, const char *value, size_t length)
{
    while (length > 0 && (value[0] == ' ' || value[0] == '\t')) {
        value++;
        length--;
    }
    while (length > 0 && (value[length - 1] == ' ' || value[length - 1] == '\t'))
        length--;
    if (length > 0 && value[0] == '[') {
        const char *bracket = memchr(value, ']', length);
        if (!bracket || (bracket + 1 < value + length && bracket[1] != ':'))
            return HTTP_STATUS_BAD_REQUEST;
        value++;
        length = (size_t)(bracket - value);
    } else {
        const char *port = memchr(value, ':', length);
        length = port ? (size_t)(port - value) : length;
    }
    if (length == 0 || length >= sizeof(request->host) || request->host[0] != '\0')
        return HTTP_STATUS_BAD_REQUEST;
    for (size_t i = 0; i < length; i++) {
        if (value[i] <= ' ' || value[i] >= 0x7f)
            return HTTP_STATUS_BAD_REQUEST;
    }
    memcpy(request->host, value, length);
    request->host[length] = '\0';
    return HTTP_STATUS_OK;
}

/* From the second line to the empty one, which is there. */
static int http_take_headers(struct http_request *request, const char *line, const char *end)
{
    static const char host[] = "Host:";
    int status = HTTP_STATUS_OK;
    while (line < end && status == HTTP_STATUS_OK) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t length = (size_t)(newline - line);
        if (length > 0 && line[length - 1] == '\r')
            length--;
        if (length >= sizeof(host) - 1 && strncasecmp(line, host, sizeof(host) - 1) == 0)
            status = http_take_host(request, line + sizeof(host) - 1, length - sizeof(host) + 1);
        line = newline + 1;
    }
    return status;
}

int http_request_parse(struct http_request *request, const char *bytes, size_t length)
{
    size_t looked_at = length < HTTP_REQUEST_BYTES ? length : HTTP_REQUEST_BYTES;
    const char *end = http_find_end(bytes, looked_at);
    if (!end)
        return length < HTTP_REQUEST_BYTES ? 0 : HTTP_STATUS_TOO_LARGE;
    const char *newline = memchr(bytes, '\n', looked_at);
    request->host[0] = '\0';
    int status = http_take_line(request, bytes, (size_t)(newline - bytes));
    return status == HTTP_STATUS_OK ? http_take_headers(request, newline + 1, end) : status;
}

bool http_host_is_local(const char *host)
{
    struct in6_addr address;
    return !strpbrk(host, ".:") || inet_pton(AF_INET, host, &address) == 1 ||
           inet_pton(AF_INET6, host, &address) == 1;
}

const char *http_status_text(int status)
{
    switch (status) {
    case HTTP_STATUS_OK:
        return "OK";
    case HTTP_STATUS_BAD_REQUEST:
        return "Bad Request";
    case HTTP_STATUS_NOT_FOUND:
        return "Not Found";
    case HTTP_STATUS_NOT_ALLOWED:
        return "Method Not Allowed";
    case HTTP_STATUS_MISDIRECTED:
        return "Misdirected Request";
    case HTTP_STATUS_TOO_LARGE:
        return "Request Header Fields Too Large";
    default:
        return "Service Unavailable";
    }
}
