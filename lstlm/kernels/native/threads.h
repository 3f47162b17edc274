/* A few threads that wait to help with a product: they look for work for a moment, then sleep until they are called.
 *
 * PyTorch's own would sleep at once, or look for work until the thread that they wait for has no processor left:
 * lstlm/cores.py has them sleep, where it is asked before they begin. Where it was not, they are taken. */
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <cstdlib>
#include <dlfcn.h>
#include <pthread.h>
#include <strings.h>
#include <system_error>
#include <thread>

/* PyTorch's threads, where they are those of GNU's OpenMP and look for work for milliseconds before they sleep, as they do
 * unless told otherwise: ours beside them would have to share the processors with them. */
struct PyTorchThreads {
    void (*run)(void (*)(void *), void *, unsigned threads, unsigned flags) = nullptr; /* by as many as PyTorch takes, for 0 */
    int (*number)() = nullptr, (*count)() = nullptr;

    bool find()
    {
#if defined(__linux__) && !defined(__SANITIZE_THREAD__) /* which does not know how they wait for each other */
        const char *policy = getenv("OMP_WAIT_POLICY");
        void *library = dlopen("libgomp.so.1", RTLD_NOW | RTLD_NOLOAD);
        if (!library || (policy && strcasecmp(policy, "passive") == 0)) return false;
        run = (decltype(run))dlsym(library, "GOMP_parallel");
        number = (decltype(number))dlsym(library, "omp_get_thread_num");
        count = (decltype(count))dlsym(library, "omp_get_num_threads");
#endif
        return run && number && count;
    }
};

class Threads {
public:
    using Work = void (*)(const void *of, int64_t part, int64_t parts);

    /* The threads of this process: a forked one has none of its parent's, and begins with new ones. */
    static Threads &ours() { return *all; }
    static void begin()
    {
        all = new Threads;
        all->with_theirs = all->theirs.find();
        pthread_atfork(nullptr, nullptr, [] { all = new Threads; });
    }

    /* work(of, part, parts) for every part, one of them by this thread; by this one alone while the others are busy. */
    void share(int64_t parts, Work work, const void *of)
    {
        if (with_theirs) return share_with_theirs(parts, work, of);
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
    PyTorchThreads theirs;
    bool with_theirs = false;
    std::mutex in_use, asleep;
    std::condition_variable wake;
    std::atomic<int64_t> order{0}; /* which share, times MOST, and of how many parts: one number, so that both fit together */
    std::atomic<int64_t> unfinished{0}, sleepers{0};
    int64_t helpers = 0;
    Work now_work = nullptr;
    const void *now_of = nullptr;

    void share_with_theirs(int64_t parts, Work work, const void *of)
    {
        struct Given { Work work; const void *of; int64_t parts; const PyTorchThreads *by; } given = {work, of, parts, &theirs};
        theirs.run(
            [](void *x) {
                const Given mine = *(const Given *)x;
                for (int64_t part = mine.by->number(); part < mine.parts; part += mine.by->count())
                    mine.work(mine.of, part, mine.parts);
            },
            &given, 0, 0);
    }

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

/* pass(first, last, part) over [0, n) by at most so many threads, where a thread gets WORTH_SHARING numbers, `each` for one of n.
 * What a pass does for one of n must not depend on others: then the sums are the same for any number of threads.
 *
 * A pass has copies of what it reads, [=], and every thread has its own: what lies on the stack of who shares it is in lines
 * of memory that are written to all the time, and would go to and fro between the processors. */
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
