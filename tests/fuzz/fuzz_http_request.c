/* Requests of HTTP clients: what comes behind a request, or has not come yet, changes nothing. */
#include <string.h>

#include "common/text/http_request.h"
#include "tests/fuzz/fuzz.h"

static void check_path(const char *path)
{
    size_t length = strnlen(path, HTTP_PATH_BYTES);
    FUZZ_REQUIRE(length < HTTP_PATH_BYTES && path[0] == '/');
    for (size_t i = 0; i < length; i++)
        FUZZ_REQUIRE(path[i] > ' ' && path[i] < 0x7f && path[i] != '?');
}

static void check_host(const char *host)
{
    size_t length = strnlen(host, HTTP_HOST_BYTES);
    FUZZ_REQUIRE(length < HTTP_HOST_BYTES);
    for (size_t i = 0; i < length; i++)
        FUZZ_REQUIRE(host[i] > ' ' && host[i] < 0x7f);
    http_host_is_local(host);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    struct http_request whole, part;
    int status = http_request_parse(&whole, text, size);
    FUZZ_REQUIRE(status == 0 || status == HTTP_STATUS_OK || (status >= 400 && status < 500));
    FUZZ_REQUIRE(status != 0 || size < HTTP_REQUEST_BYTES);
    if (status == HTTP_STATUS_OK) {
        check_path(whole.path);
        check_host(whole.host);
    }
    for (size_t length = 0; length < size; length += 1 + size / 16) {
        int early = http_request_parse(&part, text, length);
        FUZZ_REQUIRE(early == 0 || early == status);
        FUZZ_REQUIRE(early != HTTP_STATUS_OK || strcmp(part.path, whole.path) == 0);
        FUZZ_REQUIRE(early != HTTP_STATUS_OK || strcmp(part.host, whole.host) == 0);
    }
    return 0;
}
