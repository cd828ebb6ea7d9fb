#include "server/page/page.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "common/base/error.h"

#define HASH_TEXT_BYTES 45 /* 32 bytes in base64, and a NUL */

/* The hash of what stands between the two tags. */
static int page_hash(const char *open, const char *close, char hash[HASH_TEXT_BYTES])
{
    unsigned char digest[crypto_hash_sha256_BYTES];
    const char *begin = memmem(page_html, page_html_bytes, open, strlen(open));
    if (!begin)
        return ERR_PROTOCOL;
    begin += strlen(open);
    size_t left = page_html_bytes - (size_t)(begin - page_html);
    const char *end = memmem(begin, left, close, strlen(close));
    if (!end)
        return ERR_PROTOCOL;
    crypto_hash_sha256(digest, (const unsigned char *)begin, (size_t)(end - begin));
    sodium_bin2base64(hash, HASH_TEXT_BYTES, digest, sizeof(digest),
                      sodium_base64_VARIANT_ORIGINAL);
    return 0;
}

int page_headers(char headers[PAGE_HEADERS_BYTES])
{
    char style[HASH_TEXT_BYTES], script[HASH_TEXT_BYTES];
    if (page_hash("<style>", "</style>", style) < 0 ||
        page_hash("<script>", "</script>", script) < 0)
        return ERR_PROTOCOL;
    snprintf(headers, PAGE_HEADERS_BYTES,
             "Content-Security-Policy: default-src 'none'; script-src 'sha256-%s'; "
             "style-src 'sha256-%s'; connect-src 'self'; img-src data:; base-uri 'none'; "
             "form-action 'none'; frame-ancestors 'none'\r\nReferrer-Policy: no-referrer\r\n",
             script, style);
    return 0;
}
