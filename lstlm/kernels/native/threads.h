/* A few threads that wait to help with a product: they look for work for a moment, then sleep until they are called.
 *
 * PyTorch's own OpenMP is not at hand without its private libraries, and the threads of a second OpenMP would look for
 * work for much longer before they sleep. */
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <pthread.h>
#include <system_error>
#include <thread>

class Threads {
public:
    using Work = void (*)(const void *of, int64_t part, int64_t parts);

    /* The threads of this process: a forked one has none of its parent's, and begins with new ones. */
    static Threads &ours() { return *all; }
    static void begin()
    {
        all = new Threads;
        pthread_atfork(nullptr, nullptr, [] { all = new Threads; });
    }

    /* work(of, part, parts) for every part, one of them by this thread; by this one alone while the others are busy. */
    void share(int64_t parts, Work work, const void *of)
    {
        std::unique_lock<std::mutex> mine(in_use, std::try_to_lock);
        if (parts > MOST) parts = MOST;
        if (!mine.owns_lock() || !enough(parts - 1)) {
            for (int64_t part = 0; part < parts; part++) work(of, part, parts);
            return;
        }
        now_work = work, now_of = of;
        unfinished.store(parts - 1, std::memory_order_relaxed);
        {
            std::lock_guard<std::mutex> held(asleep);
            order.store((order.load(std::memory_order_relaxed) / MOST + 1) * MOST + parts % MOST, std::memory_order_release);
        }
        if (sleepers.load()) wake.notify_all();
        work(of, 0, parts);
        for (int64_t look = 0; unfinished.load(std::memory_order_acquire); look++)
            if (look < LOOKS) /* else the others may be waiting for this very processor */
                pause();
            else
                std::this_thread::yield();
    }

private:
    enum { MOST = 256, LOOKS = 4000 }; /* so many looks take some 50 µs: longer than what lies between two products */
    inline static Threads *all;
    std::mutex in_use, asleep;
    std::condition_variable wake;
    std::atomic<int64_t> order{0}; /* which share, times MOST, and of how many parts: one number, so that both fit together */
    std::atomic<int64_t> unfinished{0}, sleepers{0};
    int64_t helpers = 0;
    Work now_work = nullptr;
    const void *now_of = nullptr;

    static void pause()
    {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }

    /* Make sure that so many helpers exist; false where the system gives no more. */
    bool enough(int64_t wanted)
    {
        try {
            for (; helpers < wanted; helpers++)
                std::thread(&Threads::help, this, helpers + 1, order.load(std::memory_order_relaxed)).detach();
        } catch (const std::system_error &) {
            return false;
        }
        return true;
    }

    void help(int64_t number, int64_t seen)
    {
        for (;;) {
            for (int64_t look = 0; look < LOOKS && order.load(std::memory_order_acquire) == seen; look++) pause();
            if (order.load(std::memory_order_acquire) == seen) {
                std::unique_lock<std::mutex> held(asleep);
                sleepers++;
                wake.wait(held, [&] { return order.load(std::memory_order_acquire) != seen; });
                sleepers--;
            }
            seen = order.load(std::memory_order_acquire);
            const int64_t parts = seen % MOST ? seen % MOST : MOST;
            if (number >= parts) continue;
            now_work(now_of, number, parts); /* who gave it waits for this one: both stay what they are */
            unfinished.fetch_sub(1, std::memory_order_release);
        }
    }
};

/* pass(first, last) over [0, n) by at most so many threads, where a thread gets WORTH_SHARING numbers, `each` for one of n.
 * What a pass does for one of n must not depend on others: then the sums are the same for any number of threads. */
template <class Pass> void share_pass(int64_t threads, int64_t n, int64_t each, const Pass &pass)
{
    struct Shared { const Pass &pass; int64_t n; } shared = {pass, n};
    const int64_t most = n * each / WORTH_SHARING;
    if (threads < 2 || most < 2) return pass(0, n);
    Threads::ours().share(
        threads < most ? threads : most,
        [](const void *of, int64_t part, int64_t parts) {
            const Shared *s = (const Shared *)of;
            s->pass(part * s->n / parts, (part + 1) * s->n / parts);
        },
        &shared);
}
