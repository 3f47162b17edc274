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

    /* work(of, part, parts) for every part, some of them by other threads; by this one alone while those are busy.
     *
     * A part belongs to whoever takes it first, so that nobody waits for a thread that has no processor to begin on. */
    void share(int64_t parts, Work work, const void *of)
    {
        std::unique_lock<std::mutex> mine(in_use, std::try_to_lock);
        if (parts >= MOST) parts = MOST - 1;
        if (!mine.owns_lock() || !enough(parts - 1)) {
            for (int64_t part = 0; part < parts; part++) work(of, part, parts);
            return;
        }
        now_work = work, now_of = of;
        unfinished.store(parts, std::memory_order_relaxed);
        {
            std::lock_guard<std::mutex> held(asleep);
            order.store((order.load(std::memory_order_relaxed) / ROUND + 1) * ROUND + parts * MOST, std::memory_order_release);
        }
        if (sleepers.load()) wake.notify_all();
        while (take_part()) {}
        for (int64_t look = 0; unfinished.load(std::memory_order_acquire); look++)
            if (look < LOOKS) /* else the others may be waiting for this very processor */
                pause();
            else
                std::this_thread::yield();
    }

private:
    enum { MOST = 256, ROUND = MOST * MOST, LOOKS = 4000 }; /* so many looks take some 50 µs: longer than between two products */
    inline static Threads *all;
    std::mutex in_use, asleep;
    std::condition_variable wake;
    /* Which share, how many parts it has and how many are taken, round·ROUND + parts·MOST + taken: one number, so that they
     * fit together. Parts are fewer than MOST, so that none of the three runs over into the next. */
    std::atomic<int64_t> order{0};
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
            for (; helpers < wanted; helpers++) std::thread(&Threads::help, this).detach();
        } catch (const std::system_error &) {
            return false;
        }
        return true;
    }

    /* Take a part that nobody has taken and do it; false where there is none. */
    bool take_part()
    {
        int64_t now = order.load(std::memory_order_acquire);
        for (;;) {
            const int64_t parts = now % ROUND / MOST, taken = now % MOST;
            if (taken >= parts) return false;
            if (!order.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
            now_work(now_of, taken, parts); /* who gave it waits for this part: both stay what they are */
            unfinished.fetch_sub(1, std::memory_order_release);
            return true;
        }
    }

    void help()
    {
        for (;;) {
            while (take_part()) {}
            const int64_t seen = order.load(std::memory_order_acquire);
            if (seen % MOST < seen % ROUND / MOST) continue; /* a new share since */
            for (int64_t look = 0; look < LOOKS && order.load(std::memory_order_acquire) == seen; look++) pause();
            if (order.load(std::memory_order_acquire) != seen) continue;
            std::unique_lock<std::mutex> held(asleep);
            sleepers++;
            wake.wait(held, [&] { return order.load(std::memory_order_acquire) != seen; });
            sleepers--;
        }
    }
};

/* pass(first, last, part) over [0, n) by at most so many threads, where a thread gets WORTH_SHARING numbers, `each` for one of n.
 * What a pass does for one of n must not depend on others: then the sums are the same for any number of threads.
 *
 * A pass has copies of what it reads, [=], and every thread has its own, away from what the thread that shares it writes. */
template <class Pass> void share_parts(int64_t threads, int64_t n, int64_t each, const Pass &pass)
{
    struct Shared { Pass pass; int64_t n; } shared = {pass, n};
    const int64_t most = n * each / WORTH_SHARING;
    if (threads < 2 || most < 2) return pass(0, n, 0);
    Threads::ours().share(
        threads < most ? threads : most,
        [](const void *of, int64_t part, int64_t parts) {
            const Shared mine = *(const Shared *)of;
            mine.pass(part * mine.n / parts, (part + 1) * mine.n / parts, part);
        },
        &shared);
}

/* The same for pass(first, last). */
template <class Pass> void share_pass(int64_t threads, int64_t n, int64_t each, const Pass &pass)
{
    share_parts(threads, n, each, [=](int64_t first, int64_t last, int64_t) { pass(first, last); });
}
