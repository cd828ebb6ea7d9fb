#include "worker/python/native/bell.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace shoal_native
{

namespace
{

void ring(void *argument, int)
{
    uint64_t one = 1;
    /* Fails only when it is rung already. */
    ssize_t written = write(static_cast<const Bell *>(argument)->descriptor(), &one, sizeof(one));
    static_cast<void>(written);
}

} // namespace

Bell::Bell(std::shared_ptr<const Library> library)
    : library(std::move(library)), fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))
{
    if (fd < 0)
        throw Error(SHOAL_ESYSTEM,
                    std::string("no descriptor for completions: ") + strerror(errno));
}

Bell::~Bell()
{
    close(fd);
}

void Bell::clear() const
{
    uint64_t value;
    ssize_t got = read(fd, &value, sizeof(value));
    static_cast<void>(got);
}

void Bell::hang_on(shoal_request *request) const
{
    int code = library->on_complete(request, ring, const_cast<Bell *>(this));
    if (code < 0)
        throw library->error(code);
}

} // namespace shoal_native
