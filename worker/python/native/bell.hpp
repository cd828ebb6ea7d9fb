/* A descriptor that tells the Python backend of the requests that it has started, and of those
 * alone. The library's own tells of every request of the job, which costs each a wake-up. */
#ifndef SHOAL_NATIVE_BELL_H
#define SHOAL_NATIVE_BELL_H

#include <memory>

#include "worker/python/native/library.hpp"

namespace shoal_native
{

class Bell
{
  public:
    /* Throws Error when the system has no descriptor left. */
    explicit Bell(std::shared_ptr<const Library> library);
    ~Bell();
    Bell(const Bell &) = delete;
    Bell &operator=(const Bell &) = delete;

    /* Readable when a request that it is hung on has completed, until clear(). It is the bell's. */
    int descriptor() const
    {
        return fd;
    }
    void clear() const;
    /* The bell must be there until the request is complete, or the job closed. Throws Error. */
    void hang_on(shoal_request *request) const;

  private:
    const std::shared_ptr<const Library> library;
    const int fd;
};

} // namespace shoal_native

#endif
