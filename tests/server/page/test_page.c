/* The live page's bytes, and the policy that it is served with. */
#include "server/page/page.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/suite.h"

#define PAGE_MOST_BYTES 100000

START_TEST(it_is_the_file)
{
    static char bytes[PAGE_MOST_BYTES + 1];
    FILE *file = fopen(TEST_SOURCE_DIR "/server/page/page.html", "rb");
    ck_assert_ptr_nonnull(file);
    size_t length = fread(bytes, 1, sizeof(bytes), file);
    fclose(file);
    ck_assert_uint_le(length, PAGE_MOST_BYTES);
    ck_assert_uint_eq(page_html_bytes, length);
    ck_assert_mem_eq(page_html, bytes, length);
}
END_TEST

static const char *find(const char *part)
{
    return memmem(page_html, page_html_bytes, part, strlen(part));
}

/* Nothing comes from elsewhere, and nothing that a daemon tells becomes markup or program. */
START_TEST(it_has_no_foreign_asset)
{
    static const char *const parts[] = {
        "https:",    "src=",           "@import",        "url(",  "innerHTML",
        "outerHTML", "insertAdjacent", "document.write", "eval(", "onclick",
        "onload",    " style=",        "new Function"};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        ck_assert_msg(find(parts[i]) == NULL, "%s", parts[i]);
    const char *address = find("http:");
    ck_assert_ptr_nonnull(address);
    ck_assert_int_eq(strncmp(address, "http://www.w3.org/2000/svg\"", 27), 0); /* a name alone */
    ck_assert_ptr_null(
        memmem(address + 1, page_html_bytes - (size_t)(address + 1 - page_html), "http:", 5));
}
END_TEST

/* The hash as a browser makes it. */
static void expect_hash(const char *headers, const char *directive, const char *open,
                        const char *close)
{
    unsigned char digest[EVP_MAX_MD_SIZE], encoded[2 * EVP_MAX_MD_SIZE];
    unsigned int digest_bytes;
    char wanted[256];
    const char *begin = find(open) + strlen(open), *end = find(close);
    ck_assert_ptr_nonnull(end);
    ck_assert_int_eq(
        EVP_Digest(begin, (size_t)(end - begin), digest, &digest_bytes, EVP_sha256(), NULL), 1);
    EVP_EncodeBlock(encoded, digest, (int)digest_bytes);
    snprintf(wanted, sizeof(wanted), "%s 'sha256-%s';", directive, (char *)encoded);
    ck_assert_msg(strstr(headers, wanted) != NULL, "no %s in %s", wanted, headers);
}

START_TEST(its_policy_names_its_parts)
{
    char headers[PAGE_HEADERS_BYTES];
    ck_assert_int_eq(page_headers(headers), 0);
    expect_hash(headers, "script-src", "<script>", "</script>");
    expect_hash(headers, "style-src", "<style>", "</style>");
    ck_assert_ptr_nonnull(strstr(headers, "default-src 'none';"));
    ck_assert_ptr_nonnull(strstr(headers, "connect-src 'self';"));
    ck_assert_ptr_null(strstr(headers, "unsafe"));
    ck_assert_ptr_null(strstr(headers, "\r\n\r\n"));
    size_t length = strlen(headers);
    ck_assert_str_eq(headers + length - 2, "\r\n");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("page");
    TCase *cases = tcase_create("page");
    tcase_add_test(cases, it_is_the_file);
    tcase_add_test(cases, it_has_no_foreign_asset);
    tcase_add_test(cases, its_policy_names_its_parts);
    suite_add_tcase(suite, cases);
    return suite_main(suite);
}
